"""Graphs that Dynamo traces: cold, restarted in another process, and eager are the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from programs import PROGRAMS

SCRIPT = Path(__file__).with_name("run.py")
GRAPHS = {"breaks": 4, "layers": 1}
"""How many entries a program has, if it is not one."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_of_dynamo_is_stored_and_restored(surroundings, name):
    cold = surroundings.run(SCRIPT, name, PYTHONHASHSEED="1")
    assert cold["difference"] is None
    assert cold["warnings"] == []
    hits, misses, bypasses, stored = cold["info"]
    assert (bypasses, misses) == (0, stored)
    assert stored == GRAPHS.get(name, 1)

    warm = surroundings.run(SCRIPT, name, PYTHONHASHSEED="2")
    assert warm["difference"] is None
    assert warm["warnings"] == []
    assert warm["info"] == [hits + misses, 0, 0, 0]
    assert {row["kind"] for row in surroundings.listing()} == {"piece"}
