"""einx: a restart hits at the first call; another pattern, size, backend or einx misses."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        importlib.util.find_spec("einx") is None and os.environ.get("NPUGX_TEST_PACKAGES") != "all",
        reason="needs einx: bash tests/packages/run",
    ),
]

SCRIPT = Path(__file__).with_name("programs_einx.py")
NAMES = ("id", "sum", "mean", "dot", "vmap", "where", "model")
OTHERS = {
    "id": "b c (h s) -> b h (s c)",
    "sum": "b c [h]",
    "mean": "b [c] h",
    "dot": "b c h, d h -> b d c",
    "vmap": "b [c] h",
}


@pytest.fixture(scope="module")
def runs(once):
    def make(surroundings):
        changed = [f"{name}={pattern}" for name, pattern in OTHERS.items()]
        return {
            "cold": surroundings.run(SCRIPT),
            "warm": surroundings.run(SCRIPT),
            "pattern": surroundings.run(SCRIPT, *changed),
            "size": surroundings.run(SCRIPT, "sizes=4"),
            "backend": surroundings.run(SCRIPT, "backend=torch.vmap"),
            "edited": surroundings.run(SCRIPT, "edited"),
        }

    return once("einx", make)


@pytest.mark.parametrize("name", NAMES)
def test_a_restart_hits_at_the_first_call(runs, name):
    cold, warm = runs["cold"][name], runs["warm"][name]
    assert cold["counts"] == [0, 1, 0]
    assert warm["counts"] == [1, 0, 0], warm["reasons"]
    assert warm["digest"] == cold["digest"]


@pytest.mark.parametrize("name", OTHERS)
def test_another_pattern_is_a_miss_that_says_so(runs, name):
    row = runs["pattern"][name]
    assert row["counts"] == [0, 1, 0]
    assert any("PATTERNS" in reason for reason in row["reasons"]), row["reasons"]
    assert row["digest"] != runs["cold"][name]["digest"]


def test_another_size_in_a_pattern_is_a_miss_that_says_so(runs):
    row = runs["size"]["id"]
    assert row["counts"] == [0, 1, 0]
    assert any("SIZES" in reason for reason in row["reasons"]), row["reasons"]
    assert row["digest"] != runs["cold"]["id"]["digest"]


@pytest.mark.parametrize("name", ["sum", "mean", "dot", "model"])
def test_another_backend_in_force_is_a_miss_that_says_so(runs, name):
    row = runs["backend"][name]
    assert row["counts"] == [0, 1, 0]
    assert any("einx." in reason for reason in row["reasons"]), row["reasons"]


@pytest.mark.parametrize("name", NAMES)
def test_an_edit_of_einx_is_a_miss_or_refused(runs, name):
    """The edit is outside of the code that einx writes: it is seen because it runs the code."""
    row = runs["edited"][name]
    assert row["counts"][0] == 0
    assert any("_split_tensors" in each or "einx." in each for each in row["reasons"]), row
