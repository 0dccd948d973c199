"""Each function that a benchmark times is there: benchmarks run only at the end of `.ci/run`."""

from __future__ import annotations

import importlib
import sys
from functools import reduce
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def places(benchmark):
    phases = importlib.import_module(benchmark).PHASES
    return [place for names in phases.values() for place in names]


@pytest.mark.parametrize("benchmark", ["cold", "restored"])
def test_what_is_timed_is_there(benchmark, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    loaded = set(sys.modules)
    try:
        found = places(benchmark)
        assert len(found) > 8
        for place in found:
            module, _, path = place.partition(":")
            *classes, name = path.split(".")
            owner = reduce(getattr, classes, importlib.import_module(module))
            assert name in vars(owner), place
    finally:
        for name in set(sys.modules) - loaded:
            if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
