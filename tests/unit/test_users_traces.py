"""Hooks on Dynamo act in traces of ours alone: a user's torch.compile is what it is without us."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "users_traces.py"

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def rows(once):
    def make(surroundings):
        return {**surroundings.run(SCRIPT), **surroundings.run(SCRIPT, "beside")}

    return once("users_traces", make)


@pytest.mark.parametrize("when", ["before", "beside", "after"])
def test_a_users_trace_is_that_of_a_process_without_us(rows, when):
    assert rows[when] == rows["alone"]


def test_outside_of_our_traces_every_name_of_dynamos_is_its_own(rows):
    assert rows["imported"] == []
    assert rows["left"] == []


def test_sizes_that_our_traces_met_are_unknown_to_those_of_the_user(rows):
    assert rows["sizes"] == rows["sizes alone"]
    assert rows["misses by size"] == [2, 2]


def test_a_users_trace_waits_for_ours(rows):
    """Both keep state of the whole process while they trace."""
    assert rows["lock is free"] is False


def test_in_our_trace_hooks_were_in_place(rows):
    """Otherwise the tests above could not fail."""
    assert len(rows["in place"]) > 50
    assert rows["ours"]["info"]["misses"] == 1
    assert "True" in rows["ours"]["found"]


BEFORE = """
    import abc, json, sys, torch
    from npugx_cache import cache_compile

    class Base(abc.ABC):
        pass

    class Item:
        pass

    def f(x, item):
        return x + 1 if isinstance(item, Base) else x - 1

    def users(x, item):
        return x * 2 if isinstance(item, Base) else x * 3

    if sys.argv[1] == "registered":
        Base.register(Item)
    torch.compile(users, backend="eager", fullgraph=True)(torch.ones(1), Item())
    cached = cache_compile(f)
    with torch.no_grad():
        rows = [call(torch.ones(1), Item()).tolist() for call in (f, cached)]
    print(json.dumps(rows))
"""


@pytest.mark.thorough
def test_what_a_users_trace_left_in_dynamos_caches_does_not_hide_a_condition(surroundings):
    script = surroundings.folder / "script.py"
    script.write_text(textwrap.dedent(BEFORE))
    assert surroundings.run(script, "plain") == [[0.0], [0.0]]
    eager, cached = surroundings.run(script, "registered")
    assert cached == eager == [2.0]
