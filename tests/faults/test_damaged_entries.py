"""Whatever happens to the bytes of an entry: the right result, no exception, a reason (P2)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("inflict.py")


@pytest.fixture(scope="module")
def damaged(once):
    def make(surroundings):
        filled = surroundings.run(SCRIPT, "fill", surroundings.store)
        assert filled["stored"] == 1, filled
        copies = surroundings.folder / "copies"
        copies.mkdir(mode=0o700)
        return surroundings.run(SCRIPT, "damage", surroundings.store, copies)

    return once("damaged", make)


def told(row):
    """All that the user can read about it."""
    return [*row["reasons"], *(text for _, text in row["log"])]


def test_every_kind_of_damage_was_done_to_every_file(damaged):
    files = {name.partition(" ")[0] for name in damaged}
    assert "manifest0" in files
    assert len(files - {"blobs", "all", "manifest0"}) == 6  # one per blob
    assert len(damaged) > 100


def test_the_result_is_right_and_nothing_is_raised(damaged):
    bad = {
        name: row["first"]
        for name, row in damaged.items()
        if not row["first"]["right"] or row["first"]["raised"]
    }
    assert bad == {}


def test_a_damaged_entry_is_no_bypass(damaged):
    assert [n for n, row in damaged.items() if row["first"]["bypasses"]] == []


def test_what_a_hit_needs_and_can_not_be_verified_is_a_miss_with_a_reason(damaged):
    silent = [
        name
        for name, row in damaged.items()
        if row["first"]["misses"] and not row["first"]["reasons"] and "deleted" not in name
    ]
    assert silent == []


def test_most_damage_is_a_miss(damaged):
    missed = [name for name, row in damaged.items() if row["first"]["misses"]]
    # The program as data and the readable text are not needed to run; the rest is.
    assert {"manifest0 bit 0", "blobs swapped", "all blobs deleted"} <= set(missed)
    assert len(missed) >= len(damaged) // 2


def test_the_next_worker_is_right_as_well(damaged):
    bad = {
        name: row["second"]
        for name, row in damaged.items()
        if not row["second"]["right"] or row["second"]["raised"]
    }
    assert bad == {}


def test_the_store_heals(damaged):
    """Unless the damaged file can't be replaced, the next worker hits what the first one stored."""
    sick = [
        name
        for name, row in damaged.items()
        if not row["second"]["hits"] and "a folder" not in name and "unreadable" not in name
    ]
    assert sick == []
