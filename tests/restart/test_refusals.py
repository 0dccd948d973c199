"""What can't be stored runs right, says why, is counted, listed, and raises under strict (P7)."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import torch

from npugx_cache import version

HERE = Path(__file__).parent
SCRIPT = HERE / "programs_refused.py"
PLACE = re.compile(
    r" at programs_refused.py:(?P<line>\d+) in (?P<function>\w+) \(`(?P<code>.+?)`\)"
)


def _names():
    lines = SCRIPT.read_text().splitlines()
    for mark, line in itertools.pairwise(lines):
        if mark.startswith("@refused("):
            yield line.removeprefix("def ").partition("(")[0]


NAMES = list(_names())
if version.minor_version(torch.__version__) < (2, 12):
    NAMES.remove("a_branch_that_returns_a_view")  # eager raises as well

pytestmark = pytest.mark.thorough  # rows of the matrix look at the same quickly


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


@pytest.mark.parametrize("name", NAMES)
def test_a_reason_names_file_line_and_construct_and_what_to_change(refusals, name):
    reason = refusals["cold"][name]["strict"]["reason"]
    place = PLACE.search(reason)
    assert place, reason
    line = SCRIPT.read_text().splitlines()[int(place["line"]) - 1]
    assert place["code"].rstrip("`") in line
    assert f"def {place['function']}(" in SCRIPT.read_text()
    assert re.search(r"; to change that, \w+", reason)


def test_every_program_was_refused(refusals):
    assert set(refusals["cold"]) == set(NAMES)
