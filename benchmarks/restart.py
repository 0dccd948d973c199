"""What the first call after a restart costs: eager, this cache, and torch.compile's caches.

Cold compiles run once here; `cold.py` compares them. Every figure is measured in fresh processes
and given as the median over the runs. Prints a table (markdown) on stdout and progress on stderr.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from measuring import Numbers, fresh, machine, markdown, rounded

FIGURES_SCRIPT = Path(__file__).with_name("figures.py")
COLUMNS = (
    "figure (runs)",
    "setup, CPU s",
    "first call, CPU s",
    "first call, wall s",
    "first call / eager's",
    "setup + first call / eager's",
    "second call, ms",
    "steady call, ms",
    "graphs traced",
    "on disk, MB",
    "logits to eager's",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`what` is measured with its cache in `folder`, which is emptied before a `cold` run.

    `most` limits the number of runs of what takes long. caching_precompile gets a function that
    returns the model's logits: given the model, it raises when it loads what it stored.
    """

    title: str
    what: str
    folder: str
    cold: bool = False
    most: int = 100
    precompile: bool = False
    quick: bool = True


EAGER, OURS = "eager", "npugx_cache, restored"
FIGURES = (
    Figure(title=EAGER, what="eager", folder="eager"),
    Figure(title="npugx_cache, cold", what="npugx_cache", folder="ours", cold=True, most=1),
    Figure(title=OURS, what="npugx_cache", folder="ours"),
    Figure(title="aot_eager, every time", what="aot_eager", folder="aot_eager", cold=True, most=1),
    Figure(
        title="inductor, cold",
        what="inductor",
        folder="inductor",
        cold=True,
        most=1,
        quick=False,
    ),
    Figure(title="inductor, warm", what="inductor", folder="inductor", most=3, quick=False),
    Figure(
        title="inductor + caching_precompile, cold",
        what="inductor",
        folder="precompile",
        cold=True,
        most=1,
        precompile=True,
        quick=False,
    ),
    Figure(
        title="inductor + caching_precompile, warm",
        what="inductor",
        folder="precompile",
        most=3,
        precompile=True,
        quick=False,
    ),
)
SHORT_FIGURES = (
    Figure(title="import npugx_cache after torch", what="import", folder="import"),
    Figure(title="npugx-cache ls, start to exit", what="ls", folder="ours"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of what is fast; 1 to 3 of the rest")
    parser.add_argument("--layers", type=int, help="default: 28, with --quick 2")
    parser.add_argument("--quick", action="store_true", help="one run; eager, ours and aot_eager")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers of every run")
    args = parser.parse_args()
    layers = args.layers or (2 if args.quick else 28)
    figures = [f for f in (*FIGURES, *SHORT_FIGURES) if f.quick or not args.quick]
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(figures, 1 if args.quick else args.runs, layers, Path(temporary))
    if args.json:
        report = {"machine": machine(), "layers": layers, "figures": found}
        args.json.write_text(json.dumps(rounded(report), indent=1) + "\n")
    print(f"{layers} layers; {machine()}\n")
    print(table(found))
    print()
    for figure in SHORT_FIGURES:
        runs = found[figure.title]
        cpu, wall = (median(runs, f"first_{clock}") * 1e3 for clock in ("cpu", "wall"))
        print(f"- {figure.title} ({len(runs)}): {cpu:.0f} ms CPU, {wall:.0f} ms wall")


def measure(figures: list[Figure], runs: int, layers: int, root: Path) -> dict[str, list[Numbers]]:
    """Go round the figures `runs` times, so that a slow minute touches all of them alike."""
    found: dict[str, list[Numbers]] = {figure.title: [] for figure in figures}
    for run in range(runs):
        for figure in figures:
            if run < figure.most:
                found[figure.title].append(one_run(figure, layers, root / figure.folder))
    return found


def one_run(figure: Figure, layers: int, folder: Path) -> Numbers:
    if figure.cold:
        shutil.rmtree(folder, ignore_errors=True)
    wrapped = ["--wrapped"] if figure.precompile else []
    options = ("--layers", layers, "--folder", folder, *wrapped)
    found = fresh(FIGURES_SCRIPT, figure.what, *options, **_settings(figure, folder))
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    return found | {"disk_bytes": sum(path.stat().st_size for path in files)}


def _settings(figure: Figure, folder: Path) -> dict[str, str]:
    return {
        "NPUGX_CACHE_DIR": str(folder),  # of torch.compile(backend="npugx"), which takes no folder
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # On by default; said all the same, because the comparison rests on them.
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
        "TORCH_CACHING_PRECOMPILE": "1" if figure.precompile else "0",
    }


def median(runs: list[Numbers], name: str) -> float:
    return float(statistics.median(run[name] for run in runs))


def table(found: dict[str, list[Numbers]]) -> str:
    titles = [figure.title for figure in FIGURES if figure.title in found]
    base = median(found[EAGER], "first_cpu")
    return markdown(COLUMNS, (cells(title, found[title], base) for title in titles))


def cells(title: str, runs: list[Numbers], base: float) -> list[str]:
    setup, first = median(runs, "setup_cpu"), median(runs, "first_cpu")
    disk = median(runs, "disk_bytes")
    return [
        f"{title} ({len(runs)})",
        f"{setup:.3f}",
        f"{first:.3f}",
        f"{median(runs, 'first_wall'):.3f}",
        f"{first / base:.2f}",
        f"{(setup + first) / base:.2f}",
        f"{median(runs, 'second_wall') * 1e3:.1f}",
        f"{median(runs, 'steady_wall') * 1e3:.1f}",
        f"{median(runs, 'traced'):.0f}",
        f"{disk / 1e6:.2f}" if disk else "-",
        "equal" if all(run["equal_to_eager"] for run in runs) else "close",
    ]


if __name__ == "__main__":
    main()
