"""Run torch's own Dynamo tests through `cache_compile`, and compare every value with eager's.

    python tests/torch_suite/run.py [FILE ...] [--tests FOLDER] [--format json] [--keep FOLDER]

FILE: names of torch's test files, such as test_misc; by default those of `FILES`. Each file runs
eagerly, cold, and restarted with another hash seed, in processes of their own. The tests are no
part of this repository: `--tests` names the folder `test` of a checkout of torch, and without it
the source package `pytorch` is fetched with `apt-get source` (which needs a `deb-src` line), for
the time of the run. A test of another version of torch may fail in eager; such tests are compared
too. torch's test helpers need the package expecttest.

What differs and is not named in `expected.txt` is a failure: the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
FILES = (
    *("test_base_output", "test_ctx_manager", "test_exceptions", "test_functions", "test_global"),
    *("test_higher_order_ops", "test_hooks", "test_input_attr_tracking", "test_interop"),
    *("test_misc", "test_model_output", "test_modes", "test_modules", "test_nops"),
    *("test_python_autograd", "test_reconstruct", "test_repros", "test_sdpa", "test_subclasses"),
    *("test_skip_non_tensor", "test_subgraphs", "test_unspec", "test_view"),
)
PHASES = {
    "eager": ("eager", "0"),
    "cold": ("cached", "1"),
    "restarted": ("cached", "77"),
}
"""By name: the mode of `rerouting`, and the hash seed."""


@dataclass(kw_only=True)
class Summary:
    """What became of the tests of one file, by phase."""

    file: str
    tests: int = 0
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)


def fetched(folder: Path) -> Path:
    """The folder `test` of torch's source package."""
    subprocess.run(["apt-get", "source", "--download-only", "pytorch"], cwd=folder, check=True)
    archive = next(iter(folder.glob("pytorch_*.orig.tar.*")))
    subprocess.run(["tar", "xf", archive, "--wildcards", "*/test/*"], cwd=folder, check=True)
    return next(iter(folder.glob("*/test")))


def run(file: str, phase: str, tests: Path, folder: Path, seconds: int) -> dict[str, dict]:
    """The records of a file's tests, by their ids."""
    mode, seed = PHASES[phase]
    out = folder / f"{file}.{phase}.jsonl"
    out.unlink(missing_ok=True)
    before = filter(None, [os.environ.get("PYTHONPATH")])
    environment = {
        **os.environ,
        "TORCH_SUITE_MODE": mode,
        "TORCH_SUITE_OUT": str(out),
        "TORCH_SUITE_CACHE": str(folder / file),
        "PYTHONHASHSEED": seed,
        "PYTHONPATH": os.pathsep.join(
            [*map(str, (HERE, HERE.parents[1], tests, tests.parent)), *before]
        ),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "MALLOC_PERTURB_": "165",  # what no test has written is the same in all processes
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "rerouting", "-p", "no:cacheprovider"]
    # torch's conftest.py is written for the pytest of its day, and no test needs what it sets up.
    command += [f"--rootdir={tests}", "--noconftest", "--timeout=90", f"dynamo/{file}.py"]
    ends = time.monotonic() + seconds
    with (folder / f"{file}.{phase}.log").open("w") as log:
        while True:
            left = max(1.0, ends - time.monotonic())
            process = subprocess.Popen(command, cwd=tests, env=environment, stdout=log, stderr=log)
            try:
                process.wait(timeout=left)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                break
            if not _goes_on_after_death(out, process.returncode):
                break
    return _records(out)


def _records(out: Path) -> dict[str, dict]:
    """The last record of each test; of a test that began and did not end, what it began with."""
    lines = out.read_text().splitlines() if out.exists() else []
    return {record["id"]: record for record in map(json.loads, lines)}


def _goes_on_after_death(out: Path, status: int) -> bool:
    """True if a test killed its process; the next process goes on with the test after that."""
    lost = [record for record in _records(out).values() if record["outcome"] == "begun"]
    for record in lost:
        with out.open("a") as file:
            died = {"outcome": "died", "faults": [f"the process died: {status}"]}
            file.write(json.dumps(record | died) + "\n")
    return bool(lost)


def difference(eager: dict, cached: dict) -> str | None:
    """How a test went otherwise than in eager, in words; None if it did not."""
    if cached["faults"]:
        return cached["faults"][0]
    if len(eager["calls"]) != len(cached["calls"]):
        return f"{len(eager['calls'])} calls in eager and {len(cached['calls'])} here"
    for index, (one, other) in enumerate(zip(eager["calls"], cached["calls"], strict=True)):
        where = f"call {index} of {one['function']}"
        if one.get("raised") != other.get("raised"):
            return f"{where}: eager raised {one.get('raised')}, here {other.get('raised')}"
        if one["drawn"] != other["drawn"]:
            return f"{where}: random numbers are drawn otherwise"
        for line, here in zip(one.get("lines", ()), other.get("lines", ()), strict=False):
            if line != here:
                return f"{where}: eager {line[:120]!r}, here {here[:120]!r}"
        if len(one.get("lines", ())) != len(other.get("lines", ())):
            return f"{where}: eager left another number of objects"
    if failed := sorted({*cached["failed"]} - {*eager["failed"]}):
        return f"{failed[0]} fails, though each value is eager's"
    if (eager["outcome"], cached["outcome"]) == ("passed", "failed"):
        return "it fails, though each value is eager's"
    return None


def summary(file: str, records: dict[str, dict[str, dict]], known: dict[str, str]) -> Summary:
    made = Summary(file=file, tests=len(records["eager"]))
    if not made.tests:
        made.differing.append("no test ran: see the log (--keep)")
    for phase in ("cold", "restarted"):
        counts = made.counts[phase] = Counter()
        for name, record in records[phase].items():
            counts.update({n: record[n] for n in ("hits", "misses", "bypasses")})
            counts["values"] += sum("lines" in call for call in record["calls"])
            eager = records["eager"].get(name)
            if eager is None or (said := difference(eager, record)) is None:
                continue
            test = name.rpartition("::")[2]
            rows = made.expected if test in known else made.differing
            rows.append(f"{phase} {name.partition('::')[2]}: {said}")
        lost = records["eager"].keys() - records[phase].keys()
        made.differing += [f"{phase} {name.partition('::')[2]}: not run" for name in sorted(lost)]
    return made


def expected() -> dict[str, str]:
    """Names of tests that are known to differ, and why."""
    lines = (HERE / "expected.txt").read_text().splitlines()
    rows = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return {name: reason for name, _, reason in rows}


def show(summaries: list[Summary]) -> str:
    head = f"{'file':28}{'tests':>6}{'values':>8}{'misses':>8}{'hits':>6}{'missed again':>14}"
    lines = [f"{head}{'refused':>9}{'differ':>8}{'expected':>10}"]
    for each in summaries:
        cold, again = each.counts["cold"], each.counts["restarted"]
        lines.append(
            f"{each.file:28}{each.tests:6}{cold['values']:8}{cold['misses']:8}{again['hits']:6}"
            f"{again['misses']:14}{cold['bypasses']:9}{len(each.differing):8}{len(each.expected):10}"
        )
    return "\n".join([*lines, *(row for each in summaries for row in each.differing)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--tests", type=Path, help="the folder `test` of a checkout of torch")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--keep", type=Path, help="where to leave records and logs")
    parser.add_argument("--seconds", type=int, default=3600, help="the limit for one file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        tests = (options.tests or fetched(Path(made))).resolve()
        known, summaries = expected(), []
        for file in options.files:
            shutil.rmtree(folder / file, ignore_errors=True)  # of a run before
            records = {
                phase: run(file, phase, tests, folder.resolve(), options.seconds)
                for phase in PHASES
            }
            summaries.append(summary(file, records, known))
    if options.format == "json":
        print(json.dumps([asdict(each) for each in summaries], indent=1))
    else:
        print(show(summaries))
    return int(any(each.differing for each in summaries))


if __name__ == "__main__":
    sys.exit(main())
