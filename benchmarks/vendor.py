"""The vendor's cache and ours after a restart, beside eager: all on the simulated NPU.

Only how long the CPU works before a graph can be replayed is compared: there is no hardware here.
Needs what `bash tests/npu_sim/run` installs and builds; without it nothing is measured.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measuring import Numbers, Stopwatch, fresh, markdown, rounds, run_script
from models import qwen3

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[1]
NPU = REPOSITORY / ".npu"
LAYERS, RUNS, CALLS = 28, 5, 10
WAYS = ("eager", "vendor", "npugx_cache")
WHAT = {
    "setup": "setup, CPU s",
    "first": "first call, CPU s",
    "second": "second call, CPU s",
    "tenth": "tenth call, CPU s",
}


def measure(quick: bool) -> Numbers:
    if not (NPU / "lib/stamp").exists():
        return {}
    paths = (REPOSITORY, NPU / "site", REPOSITORY / "tests/npu_sim")
    surroundings = {
        "PYTHONPATH": ":".join(map(str, paths)),
        "LD_LIBRARY_PATH": str(NPU / "lib"),
        "NPU_STUB_LIB": str(NPU / "lib"),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "TASK_QUEUE_ENABLE": "0",
    }
    layers, runs = (2, 1) if quick else (LAYERS, RUNS)
    with tempfile.TemporaryDirectory() as root:
        worker = partial(fresh, Path(__file__), "worker", **surroundings)
        figures = [partial(worker, way, f"{root}/{way}", layers) for way in WAYS]
        for fill in figures[1:]:
            fill()
        return dict(zip(WAYS, rounds(figures, runs), strict=True))


def text(found: Numbers) -> str:
    if not found:
        return "Not measured: the simulated NPU is not there; run `bash tests/npu_sim/run` first."
    eager = found["eager"]["first_cpu"]
    rows = []
    for way, row in found.items():
        seconds = [f"{row[f'{name}_cpu']:.3f}" for name in WHAT]
        whole = row["setup_cpu"] + row["first_cpu"]
        ratios = f"{row['first_cpu'] / eager:.1f}", f"{whole / eager:.1f}"
        steady = f"{row['setup_cpu'] + row['all_cpu']:.3f}"
        same = "equal" if row["equal"] else "DIFFERENT"
        rows.append([way, *seconds, steady, *ratios, same])
    ratio_columns = ("first call / eager's", "setup + first call / eager's")
    steady_column = f"setup + {CALLS} calls, CPU s"
    columns = ["restarted", *WHAT.values(), steady_column, *ratio_columns, "logits to eager's"]
    return markdown(columns, rows)


# --- in a process of its own


def worker(way: str, folder: str, layers: str) -> Numbers:
    import torch

    import_module("npu_sim").install()
    torch.set_num_threads(1)
    model, inputs = qwen3(int(layers))
    model.to("npu")
    ids, mask = inputs["input_ids"].to("npu"), inputs["attention_mask"].to("npu")
    watch = Stopwatch()
    call = _MADE[way](_logits_of(model), folder)
    found: Numbers = watch.read("setup")
    with torch.no_grad():
        calls = Stopwatch()
        for number in range(1, CALLS + 1):
            watch = Stopwatch()
            result = call(ids, mask)
            if name := {1: "first", 2: "second", CALLS: "tenth"}.get(number):
                found |= watch.read(name)
        found |= calls.read("all")
        want = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    return found | {"equal": torch.equal(result.cpu(), want.cpu())}


def _logits_of(model: Any) -> Any:
    """A module with a method `run`: the vendor caches methods of modules alone."""
    import torch

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def run(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
            return self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits

    return Logits()


def _eager(module: Any, _: str) -> Any:
    return module.run


def _vendor(module: Any, folder: str) -> Any:
    import torch

    npu: Any = vars(torch)["npu"]
    return npu.npugraph_ex.inference.cache_compile(module.run, dynamic=False, cache_dir=folder)


def _ours(module: Any, folder: str) -> Any:
    from npugx_cache import cache_compile

    return cache_compile(module.run, dynamic=False, cache_dir=folder)


_MADE: dict[str, Callable[[Any, str], Any]] = dict(zip(WAYS, (_eager, _vendor, _ours), strict=True))

if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        print(json.dumps(worker(*sys.argv[2:])))
    else:
        run_script(__doc__, measure, text)
