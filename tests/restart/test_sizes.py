"""Sizes that change, within a process and over restarts: how many graphs, and never a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parent / "sizes.py"


@pytest.fixture
def calls(surroundings):
    """Hits, misses and bypasses after each call, in a process of its own."""

    def run(name, *sizes, dynamic=None, **environment):
        return surroundings.run(SCRIPT, name, dynamic, *sizes, **environment)

    return run


@pytest.mark.parametrize("name", ["rows", "ints", "tensors", "cache"])
def test_restarted_workers_make_the_second_size_symbolic_and_no_third_entry(calls, name):
    assert calls(name, 4) == [[0, 1, 0]]
    assert calls(name, 5) == [[0, 1, 0]]
    *_, last = calls(name, 4, 5, 6, 9, 31)
    assert last[1:] == [0, 0]


def test_a_listing_shows_which_sizes_are_symbolic(calls, surroundings):
    calls("rows", 4, 5)
    shown = {row["signature"] for row in surroundings.listing()}
    assert shown == {"x: float32[4, 3]", "x: float32[*, 3]"}
    calls("ints", 4, 5)
    assert any(row["signature"].endswith("n: *") for row in surroundings.listing())


def test_a_size_met_after_a_hit_is_the_second_one(calls):
    assert calls("rows", 4) == [[0, 1, 0]]
    assert calls("rows", 4, 5, 6) == [[1, 0, 0], [1, 1, 0], [1, 1, 0]]


def test_static_sizes_stay_static_over_restarts(calls):
    for size in (4, 5, 6):
        assert calls("rows", size, dynamic=False) == [[0, 1, 0]]
    assert calls("rows", 4, 5, 6, dynamic=False) == [[1, 0, 0], [2, 0, 0], [3, 0, 0]]


def test_the_sizes_of_another_model_of_the_class_are_another_matter(calls):
    assert calls("width4", 2) == [[0, 1, 0]]
    assert calls("width5", 3) == [[0, 1, 0]]  # its first size, as far as it knows
    assert calls("width5", 4) == [[0, 1, 0]]
    assert calls("width5", 3, 6, 9) == [[1, 0, 0], [2, 0, 0], [2, 0, 0]]
    assert calls("width4", 2, 3) == [[1, 0, 0], [1, 1, 0]]


def test_a_dynamic_entry_compiled_again_is_the_same_entry(calls):
    assert calls("rows", 4) == calls("rows", 5) == [[0, 1, 0]]
    last = calls("rows", 4, 9, 5, NPUGX_CACHE_VERIFY="recompile")[-1]
    assert last == [2, 0, 0]


def test_a_growing_sequence_is_one_entry(calls):
    sizes = range(16, 273)
    assert calls("growing", *sizes, dynamic=True) == [[0, 1, 0]] * len(sizes)
    assert calls("growing", *sizes, dynamic=True) == [[1, 0, 0]] * len(sizes)


@pytest.mark.parametrize(
    ("name", "sizes", "entries"),
    [
        ("ranges", (4, 5, 6, 8, 9, 20), 3),  # below 6, below 9, from 9 on
        ("quarters", (8, 9, 12, 10, 16), 2),  # divisible by four or not
        ("pairs", (4, 5, 6, 7, 9), 2),  # two sizes equal or not
    ],
)
def test_conditions_on_symbolic_sizes_tell_entries_apart(calls, name, sizes, entries):
    assert calls(name, *sizes, dynamic=True)[-1] == [0, entries, 0]
    assert calls(name, *reversed(sizes), dynamic=True)[-1] == [entries, 0, 0]


@pytest.mark.parametrize("dynamic", [None, False])
def test_a_size_marked_dynamic_is_symbolic_at_once(calls, dynamic):
    assert calls("marked", 4, 5, 9, dynamic=dynamic)[-1] == [0, 1, 0]
    assert calls("marked", 9, 4, 2, dynamic=dynamic)[-1] == [1, 0, 0]
