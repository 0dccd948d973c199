"""A call leaves nothing alive of its arguments, when nothing collects garbage either.

A server that switched garbage collection off would lose the memory of a KV cache with each compile.
"""

from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kept_alive.py")
pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("name", ["multiplied", "written", "branched", "caught", "refused"])
def test_nothing_of_a_first_call_is_kept_alive(surroundings, name):
    cold, warm = surroundings.run(SCRIPT, name), surroundings.run(SCRIPT, name)
    refused = name == "refused"
    for row, counts in ((cold, [0, 1, 0]), (warm, [1, 0, 0])):
        assert row["right"]
        assert row["counts"] == ([0, 0, 1] if refused else counts)
        assert row["alive"] == []
        assert row["as before"]


def test_a_process_with_frozen_objects_caches_as_any_other(surroundings):
    """The functions of a trace are found among the objects of the process, which are thawed."""
    cold, warm = (surroundings.run(SCRIPT, "paired", "frozen") for _ in range(2))
    expected = {"right": True, "alive": [], "as before": True}
    assert cold == {**expected, "counts": [0, 1, 0], "frozen": False}
    assert warm == {**expected, "counts": [1, 0, 0], "frozen": True}
