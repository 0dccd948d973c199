"""Threads that serve while others compile: each call runs its graph, under no_grad (P1, P2)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("serve_beside_compiles.py")


def test_serving_threads_run_their_graphs_while_others_compile_and_export(surroundings, seconds):
    row = surroundings.run(SCRIPT, seconds)
    assert row["faults"] == {}
    assert row["counts unchanged"]
    assert row["bypasses"] == 0
    assert min(row["calls"]) > 0
    assert row["rounds"].keys() == {"compile_or_export", "compile_here"}
