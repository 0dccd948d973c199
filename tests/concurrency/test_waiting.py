"""What is stored or bound is never held up by a compile of another thread or process (P2, P5)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("waiting.py")


@pytest.mark.parametrize(
    "scenario", ["hit_beside_a_compile", "hit_beside_a_wait_for_another_process"]
)
def test_a_stored_hit_does_not_wait(surroundings, scenario):
    surroundings.run(SCRIPT, "fill")
    beside, after = surroundings.run(SCRIPT, scenario)
    assert beside == [True, [1, 0, 0, 0], True]
    assert after == [1, 1, 0, 1]


def test_a_child_forked_beside_a_compile_hangs_on_no_lock(surroundings):
    said, later = surroundings.run(SCRIPT, "fork_beside_a_compile")
    # The bound graph, and three calls that would have to be compiled by a compiler in the middle
    # of another thread's work: those run eagerly.
    assert said == [True, True, True, True, [0, 1, 2, 1]]
    assert later == [True, [0, 3, 0, 3]]
