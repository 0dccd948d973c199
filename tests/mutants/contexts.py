"""A plugin of pytest that tells coverage.py which test runs, here and in processes that it starts.

What a fixture of a module or of the session does is of no single test: there the file is named.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coverage
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_seconds: Counter[str] = Counter()
_passed: set[str] = set()
_failed: set[str] = set()


def _begin(test: str) -> None:
    measured = coverage.Coverage.current()
    assert measured is not None
    measured.switch_context(test)
    os.environ["COVERAGE_CONTEXT"] = test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _begin(item.nodeid)
    try:
        return (yield)
    finally:
        _begin("")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Iterator[None]:
    test = request._pyfuncitem.nodeid
    _begin(test if fixturedef.scope == "function" else test.partition("::")[0])
    try:
        return (yield)
    finally:
        _begin(test)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration
    if report.failed or report.skipped:
        _failed.add(report.nodeid)
    elif report.when == "call":
        _passed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    done = {name: _seconds[name] for name in sorted(_passed - _failed)}
    Path(os.environ["COVERAGE_TIMES"]).write_text(json.dumps(done))
