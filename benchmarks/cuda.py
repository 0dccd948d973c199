"""On a GPU: the first call after a restart, and steady calls against eager and `reduce-overhead`.

A decode step of Qwen3 with a StaticCache, which writes its keys and values in place. Every way runs
in processes of its own: the last of two with one cache is what is shown.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measuring import Numbers, fresh, markdown
from models import qwen3

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS = ("eager", "npugx_cache", "torch.compile, reduce-overhead")
COLUMNS = (
    "way",
    "first call, s",
    "steady call, us",
    "steady / eager's",
    "logits to eager's",
    "restored, replayed",
)


def measure(way: str, folder: str, layers: int, times: int) -> Numbers:
    """One process: what the first call takes, and the median of the steady ones."""
    import torch

    model, step = _step(layers)
    call = _made(way, model, folder)
    with torch.no_grad():
        want = step(model.forward, 0)
        torch.cuda.synchronize()
        started = time.perf_counter()
        got = step(call, 0)
        torch.cuda.synchronize()
        first = time.perf_counter() - started
        found = []
        for position in range(1, times):
            started = time.perf_counter()
            step(call, position)
            torch.cuda.synchronize()
            found.append(time.perf_counter() - started)
    steady = sorted(found[len(found) // 2 :])  # what captures does so at its first calls
    error = float((got - want).abs().max())
    used = "-"
    if way == "npugx_cache":
        info = call.cache_info()
        used = f"{info.hits}, {sum(graph.replays for graph in info.graphs)}"
    return {"first": first, "steady": steady[len(steady) // 2], "error": error, "used": used}


def _step(layers: int) -> tuple[Any, Callable[[Callable[..., Any], int], Any]]:
    import torch
    from transformers import StaticCache

    model, inputs = qwen3(layers)
    model, token = model.cuda(), inputs["input_ids"][:, -1:].cuda()
    cache = StaticCache(config=model.config, max_cache_len=1024)

    def step(call: Callable[..., Any], position: int) -> Any:
        where = torch.tensor([[position]], device="cuda")
        # A copy: results of reduce-overhead last until its next call.
        return call(input_ids=token, past_key_values=cache, position_ids=where).logits.clone()

    return model, step


def _made(way: str, model: Any, folder: str) -> Any:
    import torch

    from npugx_cache import cache_compile

    call: Any = model.forward
    if way == "npugx_cache":
        call = cache_compile(model.forward, cache_dir=folder)
    elif way != "eager":
        call = torch.compile(model.forward, mode="reduce-overhead")
    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few layers and calls")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        sys.exit("benchmarks/cuda.py measures captured graphs on a GPU; no CUDA device is here")
    if arguments.one:
        way, folder, layers, times = arguments.one
        print(json.dumps(measure(way, folder, int(layers), int(times))))
        return
    layers, times = (2, 20) if arguments.quick else (28, 400)
    rows: list[Numbers] = []
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            place = Path(folder) / "inductor"
            for _ in range(2):
                row = fresh(
                    Path(__file__), "--one", way, folder, layers, times,
                    TORCHINDUCTOR_CACHE_DIR=str(place),
                )  # fmt: skip
            rows.append(row)
    print(torch.cuda.get_device_name(), "torch", torch.__version__, f"{layers} layers\n")
    eager = rows[0]["steady"]
    table = [
        [
            way,
            f"{row['first']:.3f}",
            f"{row['steady'] * 1e6:.0f}",
            f"{row['steady'] / eager:.2f}",
            f"{row['error']:.1e}",
            row["used"],
        ]
        for way, row in zip(WAYS, rows, strict=True)
    ]
    print(markdown(COLUMNS, table))


if __name__ == "__main__":
    main()
