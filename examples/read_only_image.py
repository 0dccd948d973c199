"""Put a filled cache into an image, and only read it in the workers.

Two processes: one fills a folder, as the build of an image does; then nobody may write there, and
a worker with NPUGX_CACHE=readonly serves from it. A folder may be moved between the two.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from npugx_cache import CachedFunction, cache_compile


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x), -1)


def serve() -> None:
    torch.manual_seed(0)
    model = cache_compile(Model().eval())
    print("result:", model(torch.ones(8)))
    assert isinstance(model.forward, CachedFunction)  # for type checkers
    print(model.forward.cache_info(), flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as image:
        built, moved = Path(image, "built"), Path(image, "cache")
        run({"NPUGX_CACHE_DIR": str(built)})  # in a Dockerfile: RUN python fill.py
        built.rename(moved)
        for path in (moved, *moved.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        run({"NPUGX_CACHE_DIR": str(moved), "NPUGX_CACHE": "readonly"})
        for path in (moved, *moved.rglob("*")):  # so that the folder can be removed
            path.chmod(0o755)


def run(settings: dict[str, str]) -> None:
    print(settings.get("NPUGX_CACHE", "build"), flush=True)
    command = [sys.executable, __file__, "serve"]
    subprocess.run(command, env={**os.environ, **settings}, check=True)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
