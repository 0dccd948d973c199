"""What is different at every call costs a bounded number of compiles and entries (P2)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("storming.py")
CALLS = 20


@pytest.mark.parametrize(
    ("name", "culprit", "advice"),
    [("shapes", "x keeps changing", "dynamic=True"), ("list", "len(self.log)", "keep what grows")],
)
def test_compiles_stop_at_the_limit_with_one_warning(surroundings, name, culprit, advice):
    row = surroundings.run(SCRIPT, name, NPUGX_CACHE_RECOMPILE_LIMIT="4")
    _, misses, bypasses, stored, entries, *_ = row["info"]
    assert row["right"]
    assert (misses, stored, entries) == (4, 4, 4)
    assert bypasses == CALLS - 4 + (name == "list")  # the list is another one at the last call too
    (warning,) = row["warnings"]
    assert culprit in warning
    assert advice in warning
    assert "NPUGX_CACHE_RECOMPILE_LIMIT" in warning
    kinds = [each["kind"] for each in surroundings.listing()]
    assert sorted(kinds) == ["bypass", *["graph"] * 4]  # a note for the next process


def test_the_limit_has_a_default(surroundings):
    assert surroundings.run(SCRIPT, "shapes")["info"][1] == 16


def test_what_is_stored_is_restored_beyond_the_limit(surroundings):
    surroundings.run(SCRIPT, "warm")
    row = surroundings.run(SCRIPT, "shapes", NPUGX_CACHE_RECOMPILE_LIMIT="2")
    assert row["right"]
    assert row["info"][:4] == [CALLS, 0, 0, 0]


def test_what_is_stored_is_restored_once_the_limit_is_reached_too(surroundings):
    surroundings.run(SCRIPT, "last")
    row = surroundings.run(SCRIPT, "shapes", NPUGX_CACHE_RECOMPILE_LIMIT="2")
    assert row["right"]
    assert row["info"][:4] == [2, 2, CALLS - 4, 2]  # the last two sizes are in the store


def test_a_process_after_one_that_came_to_the_limit_compiles_few(surroundings):
    surroundings.run(SCRIPT, "shapes", NPUGX_CACHE_RECOMPILE_LIMIT="4")
    row = surroundings.run(SCRIPT, "more", NPUGX_CACHE_RECOMPILE_LIMIT="4")
    assert row["right"]
    hits, misses, bypasses, stored, *_ = row["info"]
    assert (hits, misses, bypasses, stored) == (0, 2, CALLS - 2, 2)
    (warning,) = row["warnings"]
    assert "another process that shares this store said: calls have caused 4 compiles" in warning
    assert "`npugx-cache prune --refusals` forgets that" in warning


def test_a_higher_limit_is_kept_after_a_process_that_came_to_a_lower_one(surroundings):
    surroundings.run(SCRIPT, "shapes", NPUGX_CACHE_RECOMPILE_LIMIT="4")
    row = surroundings.run(SCRIPT, "more", NPUGX_CACHE_RECOMPILE_LIMIT="6")
    assert row["info"][1] == 6


def test_pruning_refusals_forgets_that_the_limit_was_reached(surroundings):
    surroundings.run(SCRIPT, "shapes", NPUGX_CACHE_RECOMPILE_LIMIT="4")
    surroundings.command("prune", "--refusals")
    row = surroundings.run(SCRIPT, "more", NPUGX_CACHE_RECOMPILE_LIMIT="4")
    assert row["info"][1] == 4


def test_warm_is_not_counted(surroundings):
    row = surroundings.run(SCRIPT, "warm", NPUGX_CACHE_RECOMPILE_LIMIT="2")
    assert row["right"]
    assert row["info"][1:4] == [CALLS, 0, CALLS]
    assert row["warnings"] == []


def test_a_limit_of_none_restores_and_compiles_nothing(surroundings):
    surroundings.run(SCRIPT, "last")
    row = surroundings.run(SCRIPT, "shapes", NPUGX_CACHE_RECOMPILE_LIMIT="0")
    assert row["right"]
    assert row["info"][:4] == [2, 0, CALLS - 2 + 1, 0]  # the first call is made again at the end
    (warning,) = row["warnings"]
    assert "NPUGX_CACHE_RECOMPILE_LIMIT=0 lets calls restore" in warning


def test_warm_compiles_what_a_call_may_not(surroundings):
    row = surroundings.run(SCRIPT, "warm after a call", NPUGX_CACHE_RECOMPILE_LIMIT="0")
    assert row["right"]
    assert row["info"][:4] == [0, 1, 1, 1]


def test_a_limit_that_is_no_number_is_refused(surroundings):
    worker = surroundings.start(SCRIPT, "shapes", NPUGX_CACHE_RECOMPILE_LIMIT="-1")
    _, err = worker.process.communicate()
    assert "NPUGX_CACHE_RECOMPILE_LIMIT='-1': expected a whole number, 0 or more" in err
