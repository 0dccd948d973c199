"""A cached function inside another cached or compiled one is the plain function (P1, P3)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough  # rows of the matrix look at the same quickly

SCRIPT = Path(__file__).with_name("nested.py")
CASES = ("methods", "bound methods", "module", "function", "no module")


@pytest.fixture(scope="module")
def runs(once):
    def make(surroundings):
        return {phase: surroundings.run(SCRIPT) for phase in ("cold", "warm")}

    return once("nested", make)


@pytest.mark.parametrize("case", CASES)
def test_the_whole_is_one_entry_that_a_restart_hits(runs, case):
    assert runs["cold"]["cached"][case] == [True, 0, 1, 0, 0]
    assert runs["warm"]["cached"][case] == [True, 1, 0, 0, 0]


@pytest.mark.parametrize("phase", ["cold", "warm"])
def test_nothing_is_warned_of(runs, phase):
    assert runs[phase]["lines"] == []


@pytest.mark.parametrize("phase", ["cold", "warm"])
def test_what_others_trace_sees_through_cached_functions(runs, phase):
    compiled = runs[phase]["compiled"]
    assert compiled["export"] == compiled["export of a cached module"] == [True, True]
    assert compiled["lookups"] == 0


@pytest.mark.parametrize("phase", ["cold", "warm"])
def test_what_torch_compile_was_given_is_cached_in_its_place(runs, phase):
    replaced = runs[phase]["replaced"]
    assert replaced["type"] == "Blocks"
    assert replaced["what was compiled"][0] is True
    assert replaced["what was compiled"][3] == 0
    assert replaced["function"] is True
    assert len(runs[phase]["said"]) == 2
    assert all("torch.compile is left out" in line for line in runs[phase]["said"])
