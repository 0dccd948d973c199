"""Cold compile: the first call with an empty cache, against torch.compile's aot_eager.

Each figure is the median over fresh processes, CPU time, the first run included. What ours does is
broken down by phase; Dynamo, the lowering to aten operators and the making of guards are torch's.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from measuring import Numbers, Stopwatch, fresh, markdown, rounds, run_script
from models import qwen3
from phases import Phases

LAYERS, RUNS = 28, 3
TRACE, TRACING = "npugx_cache.trace.call", "npugx_cache.trace.tracing"
PHASES = {
    "Dynamo (torch)": (f"{TRACING}:capture",),
    "lowering (torch)": (f"{TRACE}:_lower_trace",),
    "guards (torch)": (f"{TRACING}:guards_of",),
    "passes": ("npugx_cache.backend.engines:Engine.optimise",),
    "guard tree": (f"{TRACE}:_portable",),
    "source facts": (
        f"{TRACE}:facts_of",
        f"{TRACE}:Owners",
        f"{TRACE}:add_observed",
        "npugx_cache.compile:_operator_facts",
    ),
    "encode": ("npugx_cache.compile:pack", "npugx_cache.entry.artifact:Artifact.to_blobs"),
    "decode, check and bind it": ("npugx_cache.answer.lookup:Lookup._bind_packed",),
    "publish": ("npugx_cache.store_client:StoreClient._publish",),
    "lookup, imports and first run": ("npugx_cache.api:CachedFunction.__call__",),
}
OURS, PEER = "npugx_cache", "torch.compile, aot_eager"


def measure(quick: bool) -> Numbers:
    layers = 2 if quick else LAYERS
    with tempfile.TemporaryDirectory() as root:
        figures = [partial(_cold, what, layers, Path(root) / "cache") for what in (PEER, OURS)]
        found = rounds(figures, 1 if quick else RUNS)
    return {"layers": layers, **dict(zip((PEER, OURS), found, strict=True))}


def _cold(what: str, layers: int, folder: Path) -> Numbers:
    shutil.rmtree(folder, ignore_errors=True)
    return fresh(Path(__file__), "worker", what, layers, folder)


def text(found: Numbers) -> str:
    peer, ours = found[PEER]["first_cpu"], found[OURS]["first_cpu"]
    phases = found[OURS]["phases"]
    own = sum(seconds for name, seconds in phases.items() if not name.endswith("(torch)"))
    rows = [
        [PEER, f"{peer:.2f}", "1.00"],
        [f"**{OURS}**", f"{ours:.2f}", f"**{ours / peer:.2f}**"],
        *([f"- {name}", f"{s:.2f}", f"{s / peer:.3f}"] for name, s in phases.items()),
        ["what is not torch's of these", f"{own:.2f}", f"{own / peer:.3f}"],
    ]
    columns = [f"{found['layers']} layers, cold first call", "CPU s", "of aot_eager's"]
    return markdown(columns, rows)


# --- in a process of its own


def worker(what: str, layers: str, folder: str) -> Numbers:
    import torch

    torch.set_num_threads(1)
    model, inputs = qwen3(int(layers))
    phases: dict[str, float] = {}
    with torch.no_grad():
        watch = Stopwatch()
        if what == OURS:
            from npugx_cache import cache_compile

            phases = Phases(PHASES).seconds
            call = cache_compile(model, cache_dir=folder)
        else:
            call = torch.compile(model, backend="aot_eager")
        call(**inputs)
        found = watch.read("first")
    if phases:
        # The first look at the modules was before any of them was timed.
        phases["lookup, imports and first run"] += found["first_cpu"] - sum(phases.values())
    return found | {"phases": phases}


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        print(json.dumps(worker(*sys.argv[2:])))
    else:
        run_script(__doc__, measure, text)
