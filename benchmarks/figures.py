"""What is measured, one figure per process. Started by other scripts; prints one JSON object.

Model and inputs (`models.py`) are the same in every figure; one thread.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from measuring import Stopwatch
from models import qwen3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

STEADY_CALLS = 30
OURS = {"npugx_cache": "npugraph_ex", "npugx_cache_inductor": "inductor"}
DYNAMO_ALONE = "dynamo"
SAVED = "npugx_saved"


def logits_of(model: Any, inputs: dict[str, Any]) -> Any:
    """The one form in which caching_precompile can load this model again."""
    return model(**inputs).logits


def prepared(model: Any, backend: str, folder: Path, *, wrapped: bool) -> Any:
    """What a program does before the first call, imports included."""
    if backend == "eager":
        return model
    if backend in OURS:
        from npugx_cache import cache_compile

        return cache_compile(model, cache_dir=folder, backend=OURS[backend])
    import torch

    if backend == SAVED:
        return saved(model, folder)
    if backend == DYNAMO_ALONE:
        backend = "eager"
    if wrapped:
        function = torch.compile(logits_of, backend=backend)
        return lambda **inputs: SimpleNamespace(logits=function(model, inputs))
    return torch.compile(model, backend=backend)


def saved(model: Any, folder: Path) -> Any:
    """The model from the file that an earlier process saved with torch's own `aot_compile`.

    Guards are filtered out, as serving engines do: torch can't save those of this model.
    """
    import torch

    file = folder / "model.bin"
    if not file.exists():
        options: dict[str, Any] = {"guard_filter_fn": lambda guards: [False for _ in guards]}
        compiled = torch.compile(
            logits_of, backend="npugx", fullgraph=True, dynamic=False, options=options
        )
        _, inputs = qwen3(len(model.model.layers))
        made: Any = compiled
        made.aot_compile(((model, inputs), {})).save_compiled_function(str(file))
    with file.open("rb") as stored:
        function = torch.compiler.load_compiled_function(stored)
    return lambda **inputs: SimpleNamespace(logits=function(model, inputs))


def measure_calls(backend: str, layers: int, folder: Path, *, wrapped: bool) -> dict[str, Any]:
    """The first, the second and the steady call, and whether the logits are right."""
    import torch

    torch.set_num_threads(1)
    model, inputs = qwen3(layers)
    with torch.no_grad():
        gc.collect()  # else whoever makes the next objects pays for what torch's imports left
        watch = Stopwatch()
        call = prepared(model, backend, folder, wrapped=wrapped)
        found: dict[str, Any] = watch.read("setup")
        watch = Stopwatch()
        logits = call(**inputs).logits
        found |= watch.read("first")
        found |= compiler_counters()
        watch = Stopwatch()
        call(**inputs)
        found |= watch.read("second")
        found["steady_wall"] = statistics.median(steady(call, inputs))
    if os.environ.get("TORCH_CACHING_PRECOMPILE") == "1":
        torch.compiler.save_cache_artifacts()  # writes its entries; nothing else does
    return found | check(logits, folder.parent, backend)


def steady(call: Callable[..., Any], inputs: dict[str, Any]) -> Iterator[float]:
    for _ in range(STEADY_CALLS):
        start = time.perf_counter()
        call(**inputs)
        yield time.perf_counter() - start


def compiler_counters() -> dict[str, Any]:
    """How many graphs Dynamo traced, and which of torch's own caches hit."""
    from torch._dynamo.utils import counters  # transformers has loaded it already

    caches = {
        f"{group}.{name}": count
        for group in ("dynamo_cache", "aot_autograd", "inductor")
        for name, count in counters[group].items()
        if name.endswith(("_hit", "_miss", "_bypass"))
    }
    return {"traced": counters["stats"]["unique_graphs"], "caches": caches}


def check(logits: torch.Tensor, folder: Path, backend: str) -> dict[str, Any]:
    """Raise unless the logits are close to eager's and, restored, equal to the cold run's."""
    import torch
    from safetensors.torch import load_file, save_file

    eager = folder / "eager.safetensors"
    own = folder / f"{backend}.safetensors"
    if not own.exists():
        save_file({"logits": logits.contiguous()}, own)
    expected = load_file(eager)["logits"]
    torch.testing.assert_close(logits, expected)
    if backend in OURS and not torch.equal(logits, load_file(own)["logits"]):
        raise AssertionError("restored logits are not those of the cold run")
    return {"equal_to_eager": torch.equal(logits, expected)}


def measure_import() -> dict[str, Any]:
    """Importing the package after torch, in a process that imported nothing else."""
    import torch  # noqa: F401

    gc.collect()
    watch = Stopwatch()
    import npugx_cache

    _ = npugx_cache.cache_compile
    return watch.read("first")


def measure_listing(folder: Path) -> dict[str, Any]:
    """`npugx-cache ls` from start to exit, and the interpreter's own start beside it."""
    import subprocess

    found: dict[str, Any] = {}
    for name, command in (
        ("setup", ["-c", "pass"]),
        ("first", ["-m", "npugx_cache.cli", "ls", "--dir", str(folder)]),
    ):
        watch = Stopwatch()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        found |= watch.read(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", help="import, ls, eager, one of ours, or one of torch.compile's")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--folder", type=Path, required=True, help="where the figure's cache is")
    parser.add_argument("--wrapped", action="store_true", help="compile a function around it")
    args = parser.parse_args()
    if args.what == "import":
        found = measure_import()
    elif args.what == "ls":
        found = measure_listing(args.folder)
    else:
        found = measure_calls(args.what, args.layers, args.folder, wrapped=args.wrapped)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
