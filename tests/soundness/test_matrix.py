"""Whatever a trace depended on and is different now is a miss with a reason, never a wrong result.

What it did not depend on is a hit (P1, P4). Every row runs cold in one process and changed in
another, at first without a compile; `live` are the changes that can happen between two calls of one
process.
"""

from __future__ import annotations

import pytest
from matrix import CHOSEN, COUNTS, QUICK
from processes import SECONDS

pytestmark = pytest.mark.timeout(4 * SECONDS)  # the first test of all runs the matrix

CATEGORIES = {
    "source",
    "lookups",
    "values",
    "identity",
    "tensors",
    "inner_tensors",
    "parameters",
    "modules",
    "nested",
    "state",
    "control_flow",
    "environment",
    "refused",
    "options",
    "operators",
    "unrelated",
    "unguarded",
}


def rows(*, hit=None):
    """The names of the rows that must hit or must not, or of all."""
    return [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.thorough])
        for name, row in CHOSEN.items()
        if hit in (None, row.hit)
    ]


OF_NO_LINE = {
    "cached_module_inside_a_cached_one",
    "class_like_it_in_a_registry",
    "mode_entered_under_a_default_device",
}
"""Rows that torch before 2.12 refuses for the code of a class of torch's, and for a whole call;
and a row about a registry of torch's."""
MISSES, HITS = rows(hit=False), rows(hit=True)
LIVE = [name for name, row in CHOSEN.items() if row.can_happen_live]


@pytest.mark.parametrize("name", rows())
def test_compiled_it_gives_eagers_result(asked, name):
    cold, refused = asked["cold"][name], CHOSEN[name].refused
    assert cold["difference"] is None
    if refused is None:
        assert (cold["misses"], cold["bypasses"]) == (1, 0)
    else:
        assert (cold["misses"], cold["bypasses"]) == (0, 1)
        assert refused in cold["warnings"]
        if name not in OF_NO_LINE:
            assert "/main.py:" in cold["warnings"], "the reason names no line"


@pytest.mark.parametrize("name", rows())
def test_changed_it_changes_eagers_result(asked, name):
    if not CHOSEN[name].same_result:
        assert asked["changed"][name]["eager"] != asked["cold"][name]["eager"]


@pytest.mark.parametrize("name", MISSES)
def test_a_change_that_matters_is_not_a_hit(asked, name):
    changed = asked["changed"][name]
    assert (changed["hits"], changed["misses"], changed["bypasses"]) == (0, 0, 1)


@pytest.mark.parametrize("name", MISSES)
def test_a_miss_says_what_changed(asked, name):
    changed = asked["changed"][name]
    assert CHOSEN[name].bypass or changed["reasons"], "no reason at all"
    for text in CHOSEN[name].says:
        assert any(text in reason for reason in changed["reasons"])


@pytest.mark.parametrize("name", HITS)
def test_a_change_that_does_not_matter_is_a_hit(asked, name):
    changed = asked["changed"][name]
    counts = changed["hits"], changed["misses"], changed["bypasses"]
    assert counts == (1, 0, 0), changed["reasons"]
    assert changed["difference"] is None


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(CHOSEN))
def test_unchanged_it_hits_in_another_folder_home_process_and_hash_seed(runs, name):
    again = runs["again"][name]
    if CHOSEN[name].refused is not None:
        assert (again["hits"], again["misses"], again["bypasses"]) == (0, 0, 1)
        return
    assert again["difference"] is None
    assert (again["hits"], again["misses"], again["bypasses"]) == (1, 0, 0), again["reasons"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(CHOSEN))
def test_changed_and_compiled_it_gives_eagers_result(runs, name):
    assert runs["warm"][name]["difference"] is None


@pytest.mark.thorough
@pytest.mark.parametrize("name", MISSES)
def test_a_change_that_matters_is_compiled(runs, name):
    warm = runs["warm"][name]
    assert warm["hits"] == 0
    assert (warm["misses"], warm["bypasses"]) == ((0, 1) if CHOSEN[name].bypass else (1, 0))


@pytest.mark.thorough
@pytest.mark.parametrize("name", LIVE)
def test_changed_between_two_calls_it_gives_eagers_result(runs, name):
    live = runs["live"][name]
    assert live["differing"] == []
    assert live["difference"] is None


def test_there_are_rows_of_every_category():
    assert sum(COUNTS.values()) >= 230
    assert set(COUNTS) == CATEGORIES
