"""A cached function inside another cached or compiled one is the plain function (P1, P3)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from npugx_cache import version

pytestmark = pytest.mark.thorough  # rows of the matrix look at the same quickly

SCRIPT = Path(__file__).with_name("nested.py")
CASES = ("methods", "bound methods", "module", "function", "no module")
TRACES_METHODS = version.minor_version(torch.__version__) >= (2, 13)
REFUSED = () if TRACES_METHODS else ("methods", "no module")
"""Methods that are cached in their class; torch before 2.13 does not trace `function.__get__`."""


@pytest.fixture(scope="module")
def runs(once):
    def make(surroundings):
        return {phase: surroundings.run(SCRIPT) for phase in ("cold", "warm")}

    return once("nested", make)


@pytest.mark.parametrize("case", CASES)
def test_the_whole_is_one_entry_that_a_restart_hits(runs, case):
    if case in REFUSED:
        for run in runs.values():
            assert run["cached"][case][:4] == [True, 0, 0, 1]  # the inner ones are looked up
        return
    assert runs["cold"]["cached"][case] == [True, 0, 1, 0, 0]
    assert runs["warm"]["cached"][case] == [True, 1, 0, 0, 0]


@pytest.mark.parametrize("phase", ["cold", "warm"])
def test_nothing_is_warned_of(runs, phase):
    lines = runs[phase]["lines"]
    assert len(lines) == len(REFUSED)
    assert all("runs uncached" in line for line in lines)


@pytest.mark.parametrize("phase", ["cold", "warm"])
def test_what_others_trace_sees_through_cached_functions(runs, phase):
    compiled = runs[phase]["compiled"]
    assert compiled["eager"]
    assert all(compiled["export"])
    assert len(compiled["export"]) == (2 if TRACES_METHODS else 1)
    assert compiled["export of a cached module"] == [True, True]
    assert compiled["lookups"] == 0 or not TRACES_METHODS


@pytest.mark.parametrize("phase", ["cold", "warm"])
def test_what_torch_compile_was_given_is_cached_in_its_place(runs, phase):
    replaced = runs[phase]["replaced"]
    assert replaced["type"] == "Blocks"
    assert replaced["what was compiled"][0] is True
    assert (replaced["what was compiled"][3] == 0) == TRACES_METHODS
    assert replaced["function"] is True
    said = [line for line in runs[phase]["said"] if "torch.compile is left out" in line]
    assert len(said) == 2
    assert len(runs[phase]["said"]) == (2 if TRACES_METHODS else 3)
