"""Threads, instances, copies and the garbage collector, in a cold and in a warm process."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough
SCRIPT = Path(__file__).with_name("scenarios.py")
NAMES = [
    following.removeprefix("def ").partition("(")[0]
    for mark, following in itertools.pairwise(SCRIPT.read_text().splitlines())
    if mark == "@scenario"
]


@pytest.fixture(scope="module")
def runs(once):
    def make(surroundings):
        return {"cold": surroundings.run(SCRIPT), "warm": surroundings.run(SCRIPT)}

    return once("scenarios", make)


@pytest.mark.parametrize("phase", ["cold", "warm"])
@pytest.mark.parametrize("name", NAMES)
def test_results_are_right(runs, name, phase):
    row = runs[phase][name]
    assert all(row["right"]), row.get("error", row["right"])
    assert row["bypasses"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_restart_compiles_nothing(runs, name):
    warm = runs["warm"][name]
    assert warm["misses"] == 0
    assert warm["hits"] >= 1


def test_threads_that_call_at_once_compile_once(runs):
    assert runs["cold"]["many_threads_call_one_function"]["misses"] == 1
    assert runs["cold"]["threads_call_one_function_with_two_shapes"]["misses"] == 2
    assert runs["cold"]["threads_under_torch_state_of_their_own"]["misses"] == 2
    assert runs["cold"]["one_function_in_two_modules"]["misses"] == 2
    assert runs["cold"]["one_function_cached_twice"]["misses"] == 1
