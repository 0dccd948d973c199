"""The functions that run a code object are found, whether one asks for few codes or for many."""

from __future__ import annotations

import types

import pytest

from npugx_cache.trace.conditions.source_facts import Owners


def doubled(x):
    return x * 2


def made(factor):
    return lambda x: x * factor


@pytest.mark.parametrize("others", [0, 100])
def test_each_function_of_a_code_is_found(others):
    twin = types.FunctionType(doubled.__code__, {"__name__": "elsewhere"})
    closures = [made(2), made(3)]
    more = [compile(f"{n} + 1", "<more>", "eval") for n in range(others)]
    owners = Owners([doubled.__code__, closures[0].__code__, *more])
    assert {*map(id, owners[id(doubled.__code__)])} == {id(doubled), id(twin)}
    assert {*map(id, owners[id(closures[0].__code__)])} == {*map(id, closures)}
    assert all(owners[id(each)] == [] for each in more)


def test_no_code_has_no_functions():
    assert Owners([]) == {}
