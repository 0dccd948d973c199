"""Models under the hooks of accelerate, which break graphs, run in pieces: cold and restarted."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("breaking_accelerate.py")


def test_a_restart_lowers_nothing(surroundings):
    pytest.importorskip("accelerate", reason="bash tests/packages/run has it")
    cold, warm = surroundings.run(SCRIPT), surroundings.run(SCRIPT)
    for name, found in cold.items():
        hits, misses, bypasses, stored = found["counts"]
        assert (found["right"], bypasses, misses) == (True, 0, stored)
        assert warm[name]["right"]
        assert warm[name]["counts"] == [hits + misses, 0, 0, 0]
        assert not warm[name]["traced"]
    told = [text for found in cold.values() for text in found["warnings"]]
    assert told  # once for all models whose forward is the same function
    assert all("accelerate/hooks.py:" in text for text in told)
    assert cold["dispatched"]["counts"][1] >= 2
    assert cold["dispatched_inside"]["counts"][1] >= 2
