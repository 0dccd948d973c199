"""Specialisations of one function live side by side in the store, and a restart serves them all."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parent / "variants.py"


def test_shapes_dtypes_and_modes_stay_beside_each_other(surroundings):
    cold = surroundings.run(SCRIPT)
    first = {row["entry"] for row in surroundings.listing()}
    warm = surroundings.run(SCRIPT)
    rows = surroundings.listing()
    same = {"right": True, "bypasses": 0, "entries": 6, "graphs": []}
    assert cold.items() >= {**same, "hits": 0, "misses": 6, "stored": 6}.items()
    assert warm.items() >= {**same, "hits": 6, "misses": 0, "stored": 0}.items()
    assert len(first) == 6
    assert {row["entry"] for row in rows} == first
    assert len({row["signature"] for row in rows}) == 6
