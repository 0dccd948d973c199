"""What an eager run prepares is seen: a call that could not be traced is tried again after it."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parent / "lazy.py"


def test_a_module_that_prepares_itself_is_cached_from_its_second_call(surroundings):
    cold, warm = surroundings.run(SCRIPT)["Lazy"], surroundings.run(SCRIPT)["Lazy"]
    assert cold == [[True, 0, 0, 1, 1], [True, 0, 1, 1, 2], [True, 0, 1, 1, 2]]
    assert warm == [[True, 0, 0, 1, 0], [True, 1, 0, 1, 0], [True, 1, 0, 1, 0]]


def test_a_module_that_no_call_changes_is_traced_once_and_never_after_a_restart(surroundings):
    cold, warm = surroundings.run(SCRIPT)["Never"], surroundings.run(SCRIPT)["Never"]
    assert cold == [[True, 0, 0, 1, 1], [True, 0, 0, 2, 1], [True, 0, 0, 3, 1]]
    assert warm == [[True, 0, 0, 1, 0], [True, 0, 0, 2, 0], [True, 0, 0, 3, 0]]
