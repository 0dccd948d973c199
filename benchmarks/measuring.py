"""What all benchmarks share: clocks, fresh processes, tables, and the command line of a script."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    Calls = Mapping[str, Callable[[], object]]

Numbers: TypeAlias = dict[str, Any]

# Python's own cache of bytecode stays on: without it, each import would compile the package anew.
DROPPED = ("NPUGX_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "PYTHONDONTWRITEBYTECODE")


class Stopwatch:
    """CPU seconds, with those of the C++ compilers that a backend starts, and wall seconds."""

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        times = os.times()
        children = times.children_user + times.children_system
        return time.process_time() + children, time.perf_counter()

    def read(self, name: str) -> dict[str, float]:
        cpu, wall = self._now()
        return {f"{name}_cpu": cpu - self._start[0], f"{name}_wall": wall - self._start[1]}


def environment(**changes: str) -> dict[str, str]:
    """The environment of a measured process: one thread, nothing of the user's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}
    return kept | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | changes


def fresh(script: Path, *arguments: object, **changes: str) -> Numbers:
    """Run a script in a new process; the numbers it prints as JSON on its last line."""
    command = [sys.executable, str(script), *map(str, arguments)]
    print(" ".join(command[1:]), file=sys.stderr, flush=True)
    child = subprocess.run(command, env=environment(**changes), check=False, capture_output=True)
    if child.returncode:
        sys.stderr.buffer.write(child.stderr)
        raise SystemExit(f"{' '.join(command)} failed")
    found: Numbers = json.loads(child.stdout.splitlines()[-1])
    return found


def rounds(figures: Sequence[Callable[[], Numbers]], times: int) -> list[Numbers]:
    """The medians of each figure. A slow minute touches all alike: they are gone through in turn.

    What is no number is taken from the last run.
    """
    found: list[list[Numbers]] = [[] for _ in figures]
    for _ in range(times):
        for runs, figure in zip(found, figures, strict=True):
            runs.append(figure())
    return [medians(runs) for runs in found]


def medians(runs: Sequence[Numbers]) -> Numbers:
    return {name: _median([run[name] for run in runs]) for name in runs[-1]}


def _median(values: list[Any]) -> Any:
    if isinstance(values[-1], dict):
        return medians(values)
    if isinstance(values[-1], (int, float)) and not isinstance(values[-1], bool):
        return statistics.median(values)
    return values[-1]


def in_turn(
    calls: Calls, times: int, at_once: int, before: Callable[[], object] | None = None
) -> Numbers:
    """CPU us of each call, over the first one's and as a ratio to it: medians over all rounds."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(times):
        for name, call in calls.items():
            if before is not None:
                before()
            started = time.process_time_ns()
            for _ in range(at_once):
                call()
            spent[name].append((time.process_time_ns() - started) / at_once / 1e3)
    base = next(iter(spent.values()))
    return {
        name: {
            "us": statistics.median(own),
            "over": statistics.median(a - b for a, b in zip(own, base, strict=True)),
            "ratio": statistics.median(a / b for a, b in zip(own, base, strict=True)),
        }
        for name, own in spent.items()
    }


def machine() -> str:
    versions = " ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    hardware = f"{os.cpu_count()} cores, {platform.machine()}"
    return f"{hardware}, Python {platform.python_version()}, {versions}"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def run_script(
    description: str | None, measure: Callable[[bool], Numbers], text: Callable[[Numbers], str]
) -> None:
    """The command line of a benchmark. `measure(quick)` gives plain numbers, `text` a table."""
    from pathlib import Path

    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small and few, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as well")
    args = parser.parse_args()
    found = measure(args.quick)
    if args.json:
        args.json.write_text(json.dumps(rounded(found), indent=1) + "\n")
    print(text(found))


def rounded(value: Any) -> Any:
    """The numbers to five digits: what is kept for years shall be small."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
