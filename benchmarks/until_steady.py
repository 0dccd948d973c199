"""What a restart costs until it is over: setup and the first ten calls, beside eager's.

A first call alone hides what comes before (imports, decoration) and what a later call makes up for.
Each row is a way to run the workload, its cache filled by an earlier process. Results of every call
are compared with eager's. Every figure is of fresh processes, on one thread.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from measuring import Numbers, Stopwatch, fresh, machine, markdown, rounds, run_script
from models import qwen3

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS, RUNS, LAYERS = 10, 5, 28
WAYS = ("eager", "npugx_cache", "aot_eager", "inductor", "caching_precompile")
"""The last two are torch's own caches."""
QUICK = WAYS[:3]


Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class Workload(NamedTuple):
    """`target` is called with each of `calls` in turn. `is_static`: sizes never change."""

    target: Any
    calls: list[Call]
    is_static: bool = False


def _layers(count: int) -> Workload:
    model, inputs = qwen3(count)
    return Workload(model, [((), inputs)] * CALLS)


def _decode() -> Workload:
    """One token after the other into a static cache."""
    import torch
    from transformers import StaticCache

    model, inputs = qwen3(LAYERS)
    prompt = inputs["input_ids"].shape[1]
    kv = StaticCache(config=model.config, max_cache_len=prompt + CALLS)
    positions = torch.arange(prompt)[None]
    model(input_ids=inputs["input_ids"], position_ids=positions, past_key_values=kv)
    tokens = torch.randint(0, model.config.vocab_size, (CALLS, 1, 1))
    places = [torch.tensor([[prompt + each]]) for each in range(CALLS)]
    calls: list[Call] = [
        ((model, token, at, kv), {}) for token, at in zip(tokens, places, strict=True)
    ]
    return Workload(_step, calls, is_static=True)


def _step(model: Any, token: Any, position: Any, kv: Any) -> Any:
    return model(input_ids=token, position_ids=position, past_key_values=kv).logits


def _perceptron() -> Workload:
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    return Workload(nn.Sequential(*layers).eval(), [((torch.randn(8, 256),), {})] * CALLS)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "2 layers": partial(_layers, 2),
    "28 layers": partial(_layers, LAYERS),
    "decode step, 28 layers": _decode,
    "MLP": _perceptron,
}


def measure(quick: bool) -> Numbers:
    ways, runs = (QUICK, 1) if quick else (WAYS, RUNS)
    found: Numbers = {}
    for workload in ("2 layers", "MLP") if quick else WORKLOADS:
        with tempfile.TemporaryDirectory() as root:
            figures = [partial(_run, way, workload, Path(root)) for way in ways]
            for fill in figures:
                fill()
            found[workload] = dict(zip(ways, rounds(figures, runs), strict=True))
    return {"machine": machine(), "workloads": found}


def _run(way: str, workload: str, root: Path) -> Numbers:
    settings = {
        "TORCHINDUCTOR_CACHE_DIR": str(root / way),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCH_CACHING_PRECOMPILE": "1" if way == "caching_precompile" else "0",
        "XDG_STATE_HOME": str(root / "state"),
    }
    arguments = ("worker", way, workload, root / way, root / "eager.safetensors")
    return fresh(Path(__file__), *arguments, **settings)


def text(found: Numbers) -> str:
    names = ["setup", *(str(number + 1) for number in range(CALLS))]
    columns = ("restarted", *names, f"setup + {CALLS} calls", "over eager's", "to eager")
    tables = []
    for workload, ways in found["workloads"].items():
        base = sum(_milliseconds(ways["eager"]))
        rows = []
        for way, run in ways.items():
            spent = _milliseconds(run)
            over = f"{sum(spent) - base:+,.1f}"
            same = "equal" if run["is_equal"] else "close"
            rows.append([way, *(f"{each:,.1f}" for each in (*spent, sum(spent))), over, same])
        tables.append(f"{workload}, CPU ms\n\n{markdown(columns, rows)}")
    return "\n\n".join(tables)


def _milliseconds(run: Numbers) -> list[float]:
    """Of the setup and of each call."""
    return [run[name] * 1e3 for name in ("setup_cpu", *(f"{n}_cpu" for n in range(1, CALLS + 1)))]


def plot(found: Numbers, file: Path) -> None:
    """Draw what a worker has spent after each call, on a logarithmic axis."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "npugx", "font.size": 8})
    from matplotlib import pyplot as plt

    workloads = found["workloads"]
    figure, axes = plt.subplots(1, len(workloads), figsize=(3 * len(workloads), 3))
    for (workload, ways), axis in zip(workloads.items(), axes, strict=True):
        for way, run in ways.items():
            axis.plot(range(CALLS + 1), list(accumulate(_milliseconds(run))), marker=".", label=way)
        axis.set(yscale="log", xlabel="calls", title=workload)
        axis.set_xticks(range(CALLS + 1))
    axes[0].set_ylabel("CPU ms since the worker has its model")
    axes[-1].legend(fontsize=6, frameon=False)
    figure.tight_layout()
    file.parent.mkdir(exist_ok=True)
    figure.savefig(file, metadata={"Date": None})


# --- in a process of its own


def _prepared(way: str, workload: Workload, folder: str) -> Callable[..., Any]:
    """What is called with the arguments of a call, in the place of the target."""
    target: Callable[..., Any] = workload.target
    if way == "eager":
        return target
    if way == "npugx_cache":
        from npugx_cache import cache_compile

        dynamic = False if workload.is_static else None
        cached: Callable[..., Any] = cache_compile(target, cache_dir=folder, dynamic=dynamic)
        return cached
    import torch

    if way != "caching_precompile":
        return torch.compile(target, backend=way)
    # Given a module, torch 2.13 stores it, and raises when it loads it.
    function = torch.compile(_plain)
    return lambda *args, **kwargs: function(target, args, kwargs)


def _plain(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _tensor(target(*args, **kwargs))


def _tensor(result: Any) -> Any:
    import torch

    return result if isinstance(result, torch.Tensor) else result.logits


def worker(way: str, name: str, folder: str, expected: str) -> Numbers:
    import torch
    from safetensors.torch import load_file, save_file

    torch.set_num_threads(1)
    with torch.no_grad():
        workload = WORKLOADS[name]()
        gc.collect()  # else whoever makes the next objects pays for what torch's imports left
        watch = Stopwatch()
        call = _prepared(way, workload, folder)
        found: Numbers = watch.read("setup")
        results = {}
        for number, (args, kwargs) in enumerate(workload.calls, 1):
            watch = Stopwatch()
            result = call(*args, **kwargs)
            found |= watch.read(str(number))
            results[str(number)] = _tensor(result).clone()
    if way == "caching_precompile":
        torch.compiler.save_cache_artifacts()  # writes its entries; nothing else does
    if way == "eager":
        save_file(results, expected)
    want = load_file(expected)
    for each, value in results.items():
        torch.testing.assert_close(value, want[each])
    equal = all(torch.equal(value, want[each]) for each, value in results.items())
    return found | {"is_equal": equal}


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        parser = argparse.ArgumentParser()
        for each in ("way", "workload", "folder", "expected"):
            parser.add_argument(each)
        print(json.dumps(worker(*vars(parser.parse_args(sys.argv[2:])).values())))
    else:
        run_script(__doc__, measure, text)
