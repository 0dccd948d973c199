"""Cost against size: layers, specialisations, candidates under a key, entries in the store.

Each point is the median over fresh processes. The plot shows each curve relative to its first
point; the broad grey line is what grows in proportion.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

from measuring import Numbers, fresh, markdown, medians, run_script

FIGURES_SCRIPT = Path(__file__).with_name("scale_figures.py")
RUNS = 3


class Curve(NamedTuple):
    """`figure` at each of `sizes`, in one store that grows. Later curves may use it again."""

    figure: str
    title: str
    sizes: tuple[int, ...]
    quick: tuple[int, ...]
    shown: tuple[tuple[str, str, float], ...]
    """Columns: title, number, and what it is multiplied with."""
    store: str = ""


RESTORE = ("restore, CPU ms", "restore_cpu", 1e3)
CURVES = (
    Curve(
        "layers",
        "layers",
        (2, 8, 28, 64),
        (1, 2),
        (
            RESTORE,
            ("first run after it, CPU ms", "run_cpu", 1e3),
            ("later check, CPU us", "check_us", 1.0),
            ("the same, cold, CPU us", "check_cold_us", 1.0),
            ("memory, KB", "memory", 1e-3),
            ("with C++ managers, KB", "memory_later", 1e-3),
            ("on disk, KB", "disk", 1e-3),
        ),
    ),
    Curve(
        "specialisations",
        "specialisations in one process",
        (1, 16, 256),
        (1, 3),
        (
            ("restore of all, CPU ms", "restore_cpu", 1e3),
            ("call of the latest, CPU us", "same_us", 1.0),
            ("calls in turn, CPU us", "in_turn_us", 1.0),
            ("memory, KB", "memory_later", 1e-3),
        ),
        "shifted",
    ),
    Curve(
        "told",
        "candidates, told apart by the signature",
        (1, 16, 256),
        (1, 3),
        (RESTORE, ("memory, KB", "memory", 1e-3)),
        "shifted",
    ),
    Curve(
        "untold",
        "candidates, told apart by guards",
        (1, 10, 100),
        (1, 3),
        (RESTORE, ("memory, KB", "memory", 1e-3)),
    ),
    Curve(
        "store",
        "entries in the store",
        (10, 1_000, 10_000, 100_000),
        (10, 100),
        (RESTORE, ("memory, KB", "memory", 1e-3), ("`npugx-cache ls`, CPU ms", "ls_cpu", 1e3)),
    ),
)


def measure(quick: bool) -> Numbers:
    with tempfile.TemporaryDirectory() as root:
        return {curve.figure: _points(curve, quick, Path(root)) for curve in CURVES}


def _points(curve: Curve, quick: bool, root: Path) -> Numbers:
    return {str(size): _point(curve, size, quick, root) for size in _sizes(curve, quick)}


def _sizes(curve: Curve, quick: bool) -> tuple[int, ...]:
    return curve.quick if quick else curve.sizes


def _point(curve: Curve, size: int, quick: bool, root: Path) -> Numbers:
    own = f"{curve.figure}{size if curve.figure == 'layers' else ''}"
    folder = root / (f"{curve.store}{size}" if curve.store else own)
    run = partial(fresh, FIGURES_SCRIPT, curve.figure, size, folder)
    run("fill")  # nothing to do where an earlier curve has
    found = medians([run() for _ in range(1 if quick else RUNS)])
    if not found.pop("restored"):
        raise SystemExit(f"{curve.title}: {size}: compiled instead of restored")
    return found


def text(found: Numbers) -> str:
    return "\n\n".join(_table(curve, found[curve.figure]) for curve in CURVES)


def _table(curve: Curve, points: Numbers) -> str:
    columns = [curve.title, *(title for title, _, _ in curve.shown)]
    rows = [
        [f"{int(size):,}", *(f"{point[name] * factor:,.1f}" for _, name, factor in curve.shown)]
        for size, point in points.items()
    ]
    return markdown(columns, rows)


def plot(found: Numbers, file: Path) -> None:
    """Draw all curves, each relative to its first point, on logarithmic axes."""
    import matplotlib as mpl

    mpl.use("svg")
    # Text as text and no date: a small file that changes only with the numbers.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "npugx", "font.size": 8})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(CURVES), figsize=(3 * len(CURVES), 3), sharey=True)
    for curve, axis in zip(CURVES, axes, strict=True):
        points = found[curve.figure]
        sizes = [int(size) for size in points]
        axis.plot(sizes, [size / sizes[0] for size in sizes], color="0.8", linewidth=4)
        for title, name, _ in curve.shown:
            values = [max(point[name], 1e-9) for point in points.values()]
            axis.plot(sizes, [v / values[0] for v in values], marker=".", label=title)
        axis.set(xscale="log", yscale="log", xlabel=curve.title)
        axis.minorticks_off()
        axis.legend(fontsize=6, frameon=False)
    axes[0].set_ylabel("times the smallest")
    figure.tight_layout()
    file.parent.mkdir(exist_ok=True)
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    run_script(__doc__, measure, text)
