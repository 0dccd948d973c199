"""What work on the time until a worker is steady came to: an earlier commit beside this tree.

    python benchmarks/before_after.py COMMIT

Each figure is of both, in turn, by the scripts of this tree: only the package is another one. So
the earlier commit must have what the scripts call. Ratios are to eager's within the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import until_steady
from measuring import Numbers, fresh, machine, markdown, rounded, rounds

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
RUNS = 5
CHECK = "npugx_cache, the same and patched code"
GRAPHS = 256


class Row(NamedTuple):
    title: str
    aim: str
    value: Callable[[Numbers], float]
    digits: int = 1


def _over(workload: str) -> Callable[[Numbers], float]:
    return lambda found: _spent(found[workload]["npugx_cache"]) - _spent(found[workload]["eager"])


def _spent(run: Numbers) -> float:
    return float(sum(value for name, value in run.items() if name.endswith("_cpu")) * 1e3)


def _call(workload: str, number: int) -> Callable[[Numbers], float]:
    def value(found: Numbers) -> float:
        ways = found[workload]
        return float(ways["npugx_cache"][f"{number}_cpu"] / ways["eager"][f"{number}_cpu"])

    return value


def _guards(column: str) -> Callable[[Numbers], float]:
    return lambda found: float(found["overhead"]["guards"][column][CHECK]["over"])


def _steady(column: str) -> Callable[[Numbers], float]:
    return lambda found: float(found["overhead"]["steady"][column]["npugx_cache"]["over"])


def _scaling(column: str) -> Callable[[Numbers], float]:
    """How much more threads lose than eager's do, at as many calls."""

    def value(found: Numbers) -> float:
        ratios = found["overhead"]["threads"][column]
        return float(ratios["npugx_cache"] / ratios["eager"])

    return value


def _restored(found: Numbers) -> float:
    run = found["inductor"]
    return float(run["setup_cpu"] + run["first_cpu"])


ROWS = (
    Row("setup and ten calls over eager's, 28 layers, ms", "25", _over("28 layers")),
    Row("the same, 2 layers, ms", "-", _over("2 layers")),
    Row("the same, decode step, ms", "-", _over("decode step, 28 layers")),
    Row("the same, MLP, ms", "-", _over("MLP")),
    Row("setup, ms", "12", lambda found: found["28 layers"]["npugx_cache"]["setup_cpu"] * 1e3),
    Row("second call / eager's, 28 layers", "1.3", _call("28 layers", 2), 2),
    Row("guards of a call, 28 layers, hot, us", "80", _guards("28 layers, hot")),
    Row("the same, cold, us", "200", _guards("28 layers, cold")),
    Row("check of a later call, 64 layers, hot, us", "250", lambda f: f["64 layers"]["check_us"]),
    Row("the same, cold, us", "350", lambda f: f["64 layers"]["check_cold_us"]),
    Row("a tiny function over eager, us", "4", _steady("tiny")),
    Row("the same, two shapes in turn, us of both", "8", _steady("tiny, two shapes")),
    Row(
        "MLP of 3 layers / eager",
        "1",
        lambda found: found["execution"]["MLP, 3 layers of 256"]["npugx_cache"]["ratio"],
        3,
    ),
    Row("16 threads / one, over eager's, 28 layers", "1", _scaling("28 layers"), 2),
    Row("the same, tiny", "1", _scaling("tiny"), 2),
    Row("first call / eager's, 2 layers", "1.6", _call("2 layers", 1), 2),
    Row(
        f"restore of each of {GRAPHS} graphs of one function, ms",
        "2",
        lambda found: found["graphs"]["restore_cpu"] * 1e3 / GRAPHS,
        2,
    ),
    Row("a call of each of them in turn, us", "-", lambda found: found["graphs"]["in_turn_us"]),
    Row("entry, 28 layers, MB", "0.1", lambda found: found["disk"]["disk"] / 1e6, 3),
    Row("inductor's setup and first call, 28 layers, s", "0.06", _restored, 3),
    Row(
        "store get, 64 KiB / one file read and hashed",
        "1.8",
        lambda found: found["get"]["ours"] / found["get"]["F: one file and sha256"],
        2,
    ),
)


def measure(trees: dict[str, Path]) -> dict[str, Numbers]:
    found: dict[str, Numbers] = {name: {} for name in trees}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for workload in until_steady.WORKLOADS:
            ways = [("eager", Path()), *(("npugx_cache", tree) for tree in trees.values())]
            figures = [partial(_until_steady, way, workload, tree, root) for way, tree in ways]
            for fill in figures:
                fill()
            eager, *ours = rounds(figures, RUNS)
            for name, run in zip(trees, ours, strict=True):
                found[name][workload] = {"eager": eager, "npugx_cache": run}
        for title, (figure, times) in FIGURES.items():
            figures = [partial(figure, tree, root / tree.name) for tree in trees.values()]
            for name, run in zip(trees, rounds(figures, times), strict=True):
                found[name][title] = run
    return found


def _until_steady(way: str, workload: str, tree: Path, root: Path) -> Numbers:
    place = root / f"{tree.name} {workload}"
    script = HERE / "until_steady.py"
    arguments = ("worker", way, workload, place, root / "eager.safetensors")
    return fresh(script, *arguments, PYTHONPATH=str(tree), XDG_STATE_HOME=str(root / "state"))


def _script(name: str, tree: Path, root: Path) -> Numbers:
    """All figures of a script."""
    root.mkdir(exist_ok=True)
    file = root / f"{name}.json"
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(file)]
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    found: Numbers = json.loads(file.read_text())
    return found


def _scale(figure: str, size: int, tree: Path, root: Path) -> Numbers:
    folder = root / f"{figure} {size}"
    run = partial(fresh, HERE / "scale_figures.py", figure, size, folder, PYTHONPATH=str(tree))
    if not folder.exists():
        run("fill")
    return run()


def _inductor(tree: Path, root: Path) -> Numbers:
    def run(what: str) -> Numbers:
        script = HERE / "figures.py"
        return fresh(script, what, "--folder", root / what, PYTHONPATH=str(tree))

    if not (root / "eager").exists():
        run("eager")  # its logits are compared with
        run("npugx_cache_inductor")
    return run("npugx_cache_inductor")


def _store(tree: Path, root: Path) -> Numbers:
    root.mkdir(exist_ok=True)
    place = tempfile.mkdtemp(dir=root)
    return fresh(Path(__file__), "--store", place, PYTHONPATH=str(tree))


FIGURES: dict[str, tuple[Callable[[Path, Path], Numbers], int]] = {
    "overhead": (partial(_script, "overhead"), 1),
    "execution": (partial(_script, "execution"), 1),
    "64 layers": (partial(_scale, "layers", 64), 3),
    "disk": (partial(_scale, "layers", 28), 1),
    "graphs": (partial(_scale, "specialisations", GRAPHS), 3),
    "inductor": (_inductor, 5),
    "get": (_store, 3),
}
"""What measures each, and how often; two of them go through many rounds themselves."""


def text(found: dict[str, Numbers]) -> str:
    rows = [
        [row.title, row.aim, *(f"{row.value(run):.{row.digits}f}" for run in found.values())]
        for row in ROWS
    ]
    return f"{machine()}\n\n{markdown(['figure', 'aim', *found], rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", nargs="?", help="the earlier commit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as well")
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.store:
        from store import get_and_put

        print(json.dumps(get_and_put(args.store, Path("none"), 200)["get"]))
        return
    if not args.commit:
        parser.error("name the earlier commit")
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder, "before")
        git: Any = partial(subprocess.run, check=True, cwd=HERE)
        git(["git", "worktree", "add", "--quiet", "--detach", str(before), args.commit])
        try:
            trees = {args.commit: before, "now": HERE.parent}
            for tree in trees.values():  # else the first processes would compile the package
                git([sys.executable, "-m", "compileall", "-q", str(tree / "npugx_cache")])
            found = measure(trees)
        finally:
            git(["git", "worktree", "remove", "--force", str(before)])
    if args.json:
        args.json.write_text(json.dumps(rounded(found), indent=1) + "\n")
    print(text(found))


if __name__ == "__main__":
    main()
