"""einops: a restart hits at the first call, whatever the hash seed, and another pattern misses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        torch.__version__.startswith("2.12."),
        reason="torch 2.12 replaces two functions of einops by some that it refuses to trace",
    ),
]

SCRIPT = Path(__file__).with_name("programs_einops.py")
ORDERED = Path(__file__).with_name("programs_einops_order.py")
NAMES = ("rearrange", "repeat", "reduce", "split", "einsum", "pack", "layers")
OTHERS = {
    "rearrange": "b c (h s) -> b h (s c)",
    "repeat": "b c h -> b c (n h)",
    "reduce": "b c (s h) -> b h",
    "einsum": "b c h, d h -> b d c",
}


@pytest.fixture(scope="module")
def runs(once):
    def make(surroundings):
        changed = [f"{name}={pattern}" for name, pattern in OTHERS.items()]
        return {
            "cold": surroundings.run(SCRIPT, PYTHONHASHSEED="1"),
            "warm": surroundings.run(SCRIPT, PYTHONHASHSEED="2"),
            "changed": surroundings.run(SCRIPT, *changed, PYTHONHASHSEED="3"),
        }

    return once("einops", make)


@pytest.mark.parametrize("name", NAMES)
def test_a_restart_hits_at_the_first_call(runs, name):
    cold, warm = runs["cold"][name], runs["warm"][name]
    assert cold["counts"] == [0, 1, 0]
    assert warm["counts"] == [1, 0, 0], warm["reasons"]
    assert warm["digest"] == cold["digest"]


@pytest.mark.parametrize("name", OTHERS)
def test_another_pattern_is_a_miss_that_says_so(runs, name):
    row = runs["changed"][name]
    assert row["counts"] == [0, 1, 0]
    assert any("PATTERNS" in reason for reason in row["reasons"]), row["reasons"]
    assert row["digest"] != runs["cold"][name]["digest"]


def test_a_layer_that_holds_the_order_of_a_set_has_one_entry_for_each_order(surroundings):
    """The order depends on the hash seed; a process whose order is stored already hits."""
    seen = set()
    for seed in range(6):
        row = surroundings.run(ORDERED, PYTHONHASHSEED=str(seed))
        is_new = row["order"] not in seen
        assert row["counts"] == ([0, 1, 0] if is_new else [1, 0, 0]), row["reasons"]
        if is_new and seen:
            assert any("input_composition_known_unknown" in each for each in row["reasons"])
        seen.add(row["order"])
    assert len(seen) == 2
    assert len(surroundings.listing()) == 2
