"""Cached functions leave the descriptors of a process to its user, however many there are (P2)."""

from __future__ import annotations

from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("many_functions.py")
COUNT, FEW = 2_000, 16


@pytest.mark.thorough
def test_two_thousand_functions_hold_the_descriptors_of_one(surroundings):
    surroundings.run(SCRIPT, 8)  # fills the store: two graphs
    right, hits, misses, held, opens = surroundings.run(SCRIPT, COUNT)
    assert (right, hits, misses, opens) == (COUNT, COUNT, 0, True)
    assert held <= FEW
