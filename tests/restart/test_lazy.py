"""What an eager run prepares is seen: a call that could not be traced is tried again after it."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parent / "lazy.py"


@pytest.fixture(scope="module")
def rows(once):
    """The rows of a cold process and of a restarted one, by module and by call."""

    def make(surroundings):
        return [surroundings.run(SCRIPT) for _ in range(2)]

    return once("lazy", make)


def calls(rows, name):
    """Hits, misses, bypasses and traces so far, cold and restarted."""
    for process in rows:
        assert all(right for right, *_ in process[name])
    return [[tuple(counts) for _, *counts in process[name]] for process in rows]


@pytest.mark.parametrize("name", ["Lazy", "Packed", "WithoutShapes"])
def test_a_module_that_prepares_itself_is_cached_from_its_second_call(rows, name):
    cold, warm = calls(rows, name)
    assert cold == [(0, 0, 1, 1), *[(0, 1, 1, 2)] * 4]
    assert warm == [(0, 0, 1, 0), *[(1, 0, 1, 0)] * 4]


def test_a_refusal_ends_when_what_it_depends_on_changes(rows):
    cold, warm = calls(rows, "Told")
    assert cold == [(0, 0, 1, 1), (0, 0, 2, 1), *[(0, 1, 2, 2)] * 3]
    assert warm == [(0, 0, 1, 0), (0, 0, 2, 0), *[(1, 0, 2, 0)] * 3]


def test_a_refusal_that_depends_on_what_each_call_writes_is_traced_three_times(rows):
    cold, _ = calls(rows, "Counting")
    assert cold == [(0, 0, n, min(n, 3)) for n in range(1, 6)]


def test_a_module_that_no_call_changes_is_traced_once_and_never_after_a_restart(rows):
    cold, warm = calls(rows, "Never")
    assert cold == [(0, 0, n, 1) for n in range(1, 6)]
    assert warm == [(0, 0, n, 0) for n in range(1, 6)]
