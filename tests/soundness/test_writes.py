"""A cached function leaves behind what eager leaves, in everything that can be reached.

Arguments, attributes, globals, classes, cells and thread-locals are compared after each of three
calls, by type, value and identity; compiled, restarted, and for functions that can't be cached (P1,
P7).
"""

from __future__ import annotations

import pytest
from matrix import WRITES
from processes import SECONDS, run, write

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(4 * SECONDS)]

CACHED = [name for name, row in WRITES.items() if not row.bypass]
REFUSED = [name for name, row in WRITES.items() if row.refused is not None]


@pytest.fixture(scope="module")
def written(once):
    def make(surroundings):
        tree, names = surroundings.folder / "tree", list(WRITES)
        write(tree, WRITES, changed=False)
        return {
            "cold": run(surroundings, tree, "written", names, PYTHONHASHSEED="1"),
            "again": run(surroundings, tree, "written", names[::-1], PYTHONHASHSEED="77"),
        }

    return once("writes", make)


@pytest.mark.parametrize("phase", ["cold", "again"])
@pytest.mark.parametrize("name", list(WRITES))
def test_it_leaves_what_eager_leaves(written, name, phase):
    assert written[phase][name]["difference"] == []


@pytest.mark.parametrize("name", CACHED)
def test_it_is_compiled_and_restored(written, name):
    cold, again = written["cold"][name], written["again"][name]
    assert cold["bypasses"] == 0, cold["warnings"]
    assert cold["misses"] >= 1
    assert (again["misses"], again["bypasses"]) == (0, 0)
    assert again["hits"] >= 1


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_why_and_where(written, name):
    cold, again = written["cold"][name], written["again"][name]
    assert cold["bypasses"] >= 1
    ends = WRITES[name].refusal_ends
    assert (cold["misses"], cold["hits"], again["misses"], again["hits"]) == (ends, 0, 0, ends)
    assert WRITES[name].refused in cold["warnings"]
    assert "/main.py:" in cold["warnings"], "the reason names no line"
