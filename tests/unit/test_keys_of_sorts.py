"""What a sort, `min` and `max` ask of user code: their keys, and special methods of the items."""

from __future__ import annotations

import enum

import pytest
import torch

from npugx_cache import cache_compile

X = torch.tensor([1.0, 2.0])
SCALE = 1


def key(number):
    return number * SCALE


class Mode(enum.Enum):
    A = 1
    B = 2

    def __lt__(self, other):
        return (self.value < other.value) == (SCALE > 0)


def largest(x):
    return x * max([1, -2, 3], key=key)


def smallest_of_two(x):
    return x * min(1, -2, key=lambda number: key(number))


def ordered(x):
    return x * sorted([1, -2, 4], key=key)[1] + sorted([1, -2], key=key)[1]


@pytest.mark.parametrize("function", [largest, smallest_of_two, ordered])
def test_what_a_key_reads_is_noticed(tmp_path, monkeypatch, function):
    cached = cache_compile(function, cache_dir=tmp_path)
    assert torch.equal(cached(X), function(X))
    monkeypatch.setattr("tests.unit.test_keys_of_sorts.SCALE", -1)
    assert torch.equal(cached(X), function(X))
    info = cached.cache_info()
    assert (info.misses, info.stored) == (2, 2)


@pytest.mark.parametrize("name", ["min", "max"])
def test_nothing_to_choose_from_raises_as_python_does(tmp_path, name):
    function = {"min": lambda x: min([], key=key) * x, "max": lambda x: max((), key=key) * x}[name]
    cached = cache_compile(function, cache_dir=tmp_path)
    with pytest.raises(ValueError, match=rf"{name}\(\)"):
        cached(X)


def test_a_default_is_chosen_where_there_is_nothing_else(tmp_path):
    def function(x):
        return x * max([], key=key, default=7)

    cached = cache_compile(function, cache_dir=tmp_path)
    assert torch.equal(cached(X), X * 7)
    assert cached.cache_info().stored == 1


def largest_mode(x):
    return x * max([Mode.A, Mode.B]).value


def sorted_in_place(x):
    modes = [Mode.B, Mode.A]
    modes.sort()
    return x * modes[0].value


def sorted_by_what_a_key_makes(x):
    return x * sorted([1, 2], key=lambda number: Mode(number))[1]


@pytest.mark.parametrize("function", [largest_mode, sorted_in_place, sorted_by_what_a_key_makes])
def test_a_comparison_that_nobody_sees_is_refused(tmp_path, function):
    cached = cache_compile(function, cache_dir=tmp_path)
    assert torch.equal(cached(X), function(X))
    assert cached.cache_info().stored == 0
    (refusal,) = cached.explain()
    assert "npugx_cache has no rule for" in str(refusal)


def test_a_list_of_functions_is_no_call_of_them(tmp_path):
    def function(x):
        known = [key, len]
        return x * (2 if any(known) else 3) * len(set(known))

    cached = cache_compile(function, cache_dir=tmp_path)
    assert torch.equal(cached(X), function(X))
    assert cached.cache_info().stored == 1
