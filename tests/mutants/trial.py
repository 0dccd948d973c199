"""A copy of the tree, which tests run a line of it, and whether these notice a fault there."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import coverage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.mutants.faults import Fault
    from tests.mutants.rooms import Room

_STARTUP = """import os

if "COVERAGE_PROCESS_START" in os.environ:
    import coverage

    coverage.process_startup()
"""
_SETTINGS = """[run]
source = {tree}
omit = {tree}/tests/*
data_file = {data}/measured
parallel = true
context = ${{COVERAGE_CONTEXT-}}
core = ctrace
disable_warnings = no-data-collected, module-not-measured
"""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)

TESTS_AT_MOST = 300
SECONDS_AT_MOST = 40
"""For one fault: more tests than these are not tried."""


class Verdict(NamedTuple):
    result: str
    """"killed", "hung", "survived" or "unclear" (the tests themselves could not be run)."""
    by: str
    tests: int
    seconds: float


class Map(NamedTuple):
    seconds: Mapping[str, float]
    """Of each test that passes."""
    lines: Mapping[str, Mapping[int, set[str]]]
    """Which tests, or files of tests, run a line of a file."""
    marks: str
    """Which of them run: pytest's `-m`."""

    def tests(self, fault: Fault) -> list[str]:
        """The tests of the lines of a fault: one of each function first, quick ones first."""
        of_file = self.lines.get(fault.path, {})
        first = next((n for n in range(fault.line, fault.last_line + 1) if of_file.get(n)), None)
        if first is None:
            return []
        by_function: dict[str, list[str]] = defaultdict(list)
        for test in sorted(of_file[first], key=lambda test: (self.cost(test), test)):
            by_function[test.partition("[")[0]].append(test)
        in_turn = itertools.chain.from_iterable(itertools.zip_longest(*by_function.values()))
        chosen: list[str] = []
        left: float = SECONDS_AT_MOST
        for test in filter(None, in_turn):
            left -= self.cost(test)
            if chosen and (left < 0 or len(chosen) == TESTS_AT_MOST):
                break
            chosen.append(test)
        return chosen

    def cost(self, test: str) -> float:
        if "::" in test:
            return self.seconds[test]
        return sum(spent for name, spent in self.seconds.items() if name.startswith(f"{test}::"))


class Copy:
    """A copy of the checkout. Nothing is ever changed in the checkout itself."""

    def __init__(self, checkout: Path, state: Path) -> None:
        self.state = state.resolve()
        self.tree = self.state / "tree"
        self._alone: dict[str, bool] = {}
        if not (self.state / "copied").exists():
            shutil.rmtree(self.state, ignore_errors=True)
            for name in _files(checkout):
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(checkout / name, self.tree / name, follow_symlinks=False)
            (self.tree / "sitecustomize.py").write_text(_STARTUP)
            (self.state / "copied").touch()

    def sources(self) -> list[str]:
        """The files of the package, under the names without links."""
        return sorted(
            str(path.relative_to(self.tree))
            for folder in ("npugx_cache", "backend", "store")
            for path in (self.tree / folder).rglob("*.py")
        )

    def map_of(self, room: Room) -> Map:
        """What the tests of a room run; measured once for each folder or file of tests."""
        seconds: dict[str, float] = {}
        lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        parts = [(name, "not thorough") for name in room.tests]
        parts += [(name, "thorough") for name in room.thorough]
        for name, marks in parts:
            what = name if marks == "not thorough" else f"{name}, {marks}"
            known = self.state / "maps" / f"{what.replace('/', ' ')}.json"
            if not known.exists():
                known.parent.mkdir(exist_ok=True)
                known.write_text(json.dumps(self._measure(name, marks)))
            measured = json.loads(known.read_text())
            seconds |= measured["seconds"]
            for path, of_file in measured["lines"].items():
                for line, names in of_file.items():
                    lines[path][int(line)].update(names)
        return Map(seconds, lines, "" if room.thorough else "not thorough")

    def _measure(self, tests: str, marks: str) -> dict[str, Any]:
        data = self.state / "measuring"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        settings = data / "settings"
        settings.write_text(_SETTINGS.format(tree=self.tree, data=data))
        changes = {"COVERAGE_PROCESS_START": str(settings), "COVERAGE_TIMES": str(data / "times")}
        self._run(["-m", marks, "-p", "tests.mutants.contexts", tests], 3600, **changes)
        lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for file in data.glob("measured*"):
            of_process = coverage.CoverageData(str(file))
            of_process.read()
            for path in of_process.measured_files():
                of_file = lines[os.path.relpath(path, self.tree)]
                for line, contexts in of_process.contexts_by_lineno(path).items():
                    of_file[line].update(contexts)
        seconds = json.loads((data / "times").read_text())
        known = {*seconds, *(name.partition("::")[0] for name in seconds)}
        kept = {
            path: {line: sorted(known & contexts) for line, contexts in of_file.items()}
            for path, of_file in lines.items()
        }
        return {"seconds": seconds, "lines": kept}

    def judge(self, fault: Fault, tests: list[str], marks: str, expected: float) -> Verdict:
        """Run tests with a fault in the tree, which is whole again afterwards."""
        begun = time.monotonic()
        timeout = 120 + 5 * expected  # for a busy machine; few faults make a loop endless
        with self._faulty(fault):
            code, output = self._run(["-x", "-m", marks, *tests], timeout)
        result = {0: "survived", 1: "killed", 2: "killed", None: "hung"}.get(code, "unclear")
        failed = _FAILED.search(output)
        by = failed[1] if failed and result == "killed" else ""
        if "::" in by and not self._passes_alone(by, timeout):
            result = "unclear"
        return Verdict(result, by, len(tests), round(time.monotonic() - begun, 1))

    @contextlib.contextmanager
    def _faulty(self, fault: Fault) -> Iterator[None]:
        file = self.tree / fault.path
        source, times = file.read_bytes(), file.stat()
        try:
            file.write_bytes(fault.of(source))
            _forget_bytecode(file)
            yield
        finally:
            file.write_bytes(source)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
            _forget_bytecode(file)

    def _passes_alone(self, test: str, timeout: float) -> bool:
        """Whether a test that failed passes without the fault: a few need those that ran before."""
        if test not in self._alone:
            self._alone[test] = self._run(["-m", "", test], timeout)[0] == 0
        return self._alone[test]

    def _run(self, arguments: list[str], timeout: float, **changes: str) -> tuple[int | None, str]:
        temporary = self.state / "temporary"
        temporary.mkdir(exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", *arguments],
            cwd=self.tree,
            env={
                **os.environ,
                "PYTHONPATH": str(self.tree),
                "TMPDIR": str(temporary),
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
                "COLUMNS": "1000",
                **changes,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            shutil.rmtree(temporary, ignore_errors=True)
        return process.returncode, output


def _forget_bytecode(source: Path) -> None:
    """Remove what Python compiled of a file: only the size and the second tell which text it is of.

    Tests that start processes of their own write bytecode there, also of a fault.
    """
    for path in source.parent.glob(f"__pycache__/{source.stem}.*.pyc"):
        path.unlink()


def _files(checkout: Path) -> list[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.split("\0") if name and os.path.lexists(checkout / name)]
