"""torch.compile(backend="npugx"): a restart, beside Dynamo alone and torch's own warm starts.

Dynamo traces again in each of these processes, but for the file that `aot_compile` saved. So the
time over Dynamo's own ("over Dynamo") is what a backend costs. Every figure is of fresh processes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from figures import DYNAMO_ALONE, SAVED
from measuring import Numbers, machine, markdown, run_script
from restart import Figure, median
from restart import measure as measure_figures

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYERS, RUNS = 28, 3
EAGER, DYNAMO = "eager", "torch.compile, backend eager: Dynamo alone"
INDUCTOR = "npugx_inductor"
FIGURES = (
    Figure(title=EAGER, what="eager", folder="eager"),
    Figure(title=DYNAMO, what=DYNAMO_ALONE, folder="dynamo"),
    Figure(title="torch.compile, npugx, cold", what="npugx", folder="npugx", cold=True, most=1),
    Figure(title="torch.compile, npugx, restored", what="npugx", folder="npugx"),
    Figure(title="aot_compile, npugx, saved", what=SAVED, folder="saved", cold=True, most=1),
    Figure(title="aot_compile, npugx, loaded", what=SAVED, folder="saved"),
)
TORCH = (
    Figure(title="torch.compile, aot_eager", what="aot_eager", folder="aot_eager"),
    Figure(
        title="torch.compile, npugx_inductor, cold",
        what=INDUCTOR,
        folder="ours",
        cold=True,
        most=1,
    ),
    Figure(title="torch.compile, npugx_inductor, restored", what=INDUCTOR, folder="ours"),
    Figure(
        title="torch.compile, inductor, cold",
        what="inductor",
        folder="inductor",
        cold=True,
        most=1,
    ),
    Figure(title="torch.compile, inductor, warm", what="inductor", folder="inductor"),
)
COLUMNS = (
    "figure (runs)",
    "setup, CPU s",
    "first call, CPU s",
    "over Dynamo, CPU s",
    "first call, wall s",
    "second call, ms",
    "steady call, ms",
    "on disk, MB",
    "logits to eager's",
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
    base = median(found[DYNAMO], "first_cpu")
    for title, runs in found.items():
        first, disk = median(runs, "first_cpu"), median(runs, "disk_bytes")
        traced = title.startswith("torch.compile") and title != DYNAMO
        yield [
            f"{title} ({len(runs)})",
            f"{median(runs, 'setup_cpu'):.3f}",
            f"{first:.3f}",
            f"{first - base:+.3f}" if traced else "-",
            f"{median(runs, 'first_wall'):.3f}",
            f"{median(runs, 'second_wall') * 1e3:.1f}",
            f"{median(runs, 'steady_wall') * 1e3:.1f}",
            f"{disk / 1e6:.2f}" if disk else "-",
            "equal" if all(run["equal_to_eager"] for run in runs) else "close",
        ]


if __name__ == "__main__":
    run_script(__doc__, measure, text)
