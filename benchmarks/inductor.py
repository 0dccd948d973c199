"""The backend inductor: a restored first call and steady calls against torch's own warm starts.

The same kernels come back in different ways. Torch's caches are filled by a cold run each, as is
ours; with `--quick` ours alone is measured. Prints a table; every figure is of fresh processes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import Numbers, machine, markdown, run_script
from restart import Figure, median
from restart import measure as measure_figures

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYERS, RUNS = 28, 3
EAGER, RESTORED = "eager", "npugx_cache, inductor, restored"
OURS = "npugx_cache_inductor"
FIGURES = (
    Figure(title=EAGER, what="eager", folder="eager"),
    Figure(title="npugx_cache, inductor, cold", what=OURS, folder="ours", cold=True, most=1),
    Figure(title=RESTORED, what=OURS, folder="ours"),
)
TORCH = tuple(
    Figure(
        title=f"torch.compile, {name}, {phase}",
        what="inductor",
        folder=folder,
        cold=phase == "cold",
        most=1 if phase == "cold" else RUNS,
        precompile=folder == "precompile",
    )
    for name, folder in (("inductor", "inductor"), ("caching_precompile", "precompile"))
    for phase in ("cold", "warm")
)
COLUMNS = (
    "figure (runs)",
    "setup, CPU s",
    "first call, CPU s",
    "setup + first call, CPU s",
    "steady call, ms",
    "on disk, MB",
    "setup + first call / ours restored",
    "steady call / ours restored",
)


def measure(quick: bool) -> Numbers:
    figures = [*FIGURES, *(() if quick else TORCH)]
    layers, runs = (1, 1) if quick else (LAYERS, RUNS)
    with tempfile.TemporaryDirectory() as folder:
        found = measure_figures(figures, runs, layers, Path(folder))
    return {"machine": machine(), "layers": layers, "figures": found}


def text(found: Numbers) -> str:
    return f"{found['layers']} layers\n\n{markdown(COLUMNS, _rows(found['figures']))}"


def _rows(found: dict[str, list[Numbers]]) -> Iterator[list[str]]:
    ours = found[RESTORED]
    for title, runs in found.items():
        setup, first = median(runs, "setup_cpu"), median(runs, "first_cpu")
        steady, disk = median(runs, "steady_wall"), median(runs, "disk_bytes")
        yield [
            f"{title} ({len(runs)})",
            f"{setup:.3f}",
            f"{first:.3f}",
            f"{setup + first:.3f}",
            f"{steady * 1e3:.2f}",
            f"{disk / 1e6:.2f}" if disk else "-",
            f"{(setup + first) / (median(ours, 'setup_cpu') + median(ours, 'first_cpu')):.2f}",
            f"{steady / median(ours, 'steady_wall'):.2f}",
        ]


if __name__ == "__main__":
    run_script(__doc__, measure, text)
