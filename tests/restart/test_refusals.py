"""What can't be stored runs right, says why, is counted, listed, and raises under strict (P7)."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = HERE / "programs_refused.py"


def _names():
    lines = SCRIPT.read_text().splitlines()
    for mark, line in itertools.pairwise(lines):
        if mark.startswith("@refused("):
            yield line.removeprefix("def ").partition("(")[0]


NAMES = list(_names())


@pytest.fixture(scope="module")
def refusals(once):
    def make(surroundings):
        return {
            "cold": surroundings.run(SCRIPT),
            "warm": surroundings.run(SCRIPT),
            "listed": surroundings.listing(),
        }

    return once("refusals", make)


@pytest.mark.parametrize("phase", ["cold", "warm"])
@pytest.mark.parametrize("name", NAMES)
def test_a_refused_program_is_right_and_counted_and_warned_of_once(refusals, phase, name):
    row = refusals[phase][name]
    assert row["difference"] is None
    assert row["bypasses"] >= 1
    assert (row["hits"], row["misses"]) == (0, 0)
    (warning,) = row["warnings"]
    assert "runs uncached" in warning
    assert row["reason"] in warning


@pytest.mark.parametrize("name", NAMES)
def test_strict_raises_the_reason(refusals, name):
    strict = refusals["cold"][name]["strict"]
    assert strict is not None, "nothing was raised"
    assert refusals["cold"][name]["reason"] in strict["reason"]
    assert strict["function"] in strict["text"]
    assert strict["reason"] in strict["text"]


@pytest.mark.parametrize("name", NAMES)
def test_a_refused_function_is_listed_with_its_reason(refusals, name):
    strict = refusals["cold"][name]["strict"]
    rows = [row for row in refusals["listed"] if row["function"] == strict["function"]]
    assert [row["kind"] for row in rows] == ["bypass"]
    assert rows[0]["reason"] == strict["reason"]


def test_every_program_was_refused(refusals):
    assert set(refusals["cold"]) == set(NAMES)
