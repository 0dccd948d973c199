"""What comes from outside into a first call reaches the user; only our faults are a miss (P2)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("interrupting.py")
RIGHT = [3.0, 3.0]


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("timeout", ["TimeoutError", "time is up"]),
        ("value", ["ValueError", "time is up"]),
        ("interrupt", ["KeyboardInterrupt", "time is up"]),
        ("memory", ["MemoryError", "no memory left for a moment"]),
    ],
)
def test_it_reaches_the_user_and_the_next_call_compiles(surroundings, kind, raised):
    first, second, counts = surroundings.run(SCRIPT, kind)
    assert first == raised
    assert second == RIGHT
    assert counts == [0, 1, 0, 1]


def test_a_machine_short_of_files_runs_one_call_eagerly(surroundings):
    first, second, counts = surroundings.run(SCRIPT, "files")
    assert (first, second) == (RIGHT, RIGHT)
    assert counts == [0, 1, 1, 1]


def test_an_error_of_the_traced_code_itself_is_a_refusal(surroundings):
    first, second, counts = surroundings.run(SCRIPT, "own")
    assert (first, second) == (RIGHT, RIGHT)
    assert counts == [0, 0, 2, 0]


def test_what_the_caller_is_handling_is_not_raised_again(surroundings):
    rows = surroundings.run(SCRIPT, "handled")
    assert rows == [[RIGHT, [1.0 + n] * 2] for n in range(3)]
