"""Iterators that a function is given, and walks backwards over what changes."""

from __future__ import annotations

import collections

import pytest
import torch

from npugx_cache import cache_compile
from npugx_cache.trace import dynamo  # noqa: F401 - the rules are loaded in its order
from npugx_cache.trace.rules import walked_in_c

X = torch.tensor([1.0, 2.0])


def star(x, numbers):
    return x * len([*numbers])


def spread(x, numbers):
    return count(x, *numbers)


def count(x, *numbers):
    return x * len(numbers)


def rest(x, numbers):
    return x * next(numbers) + len(tuple(numbers))


@pytest.mark.parametrize("function", [star, spread, rest])
@pytest.mark.parametrize("make", [lambda: iter((1, 2, 3)), lambda: iter(range(1, 4))])
def test_an_iterator_is_left_where_eager_leaves_it(tmp_path, function, make):
    cached = cache_compile(function, cache_dir=tmp_path)
    for _ in range(2):
        numbers = make()
        assert torch.equal(cached(X, numbers), function(X, make()))
        assert list(numbers) == []
    assert cached.cache_info().stored == 1


def summed(x, numbers):
    return x * sum(numbers)


def zipped(x, numbers):
    for index, number in zip(range(2), numbers, strict=False):
        x = x * index + number
    return x


@pytest.mark.parametrize(
    ("function", "make"),
    [(summed, lambda: iter((1, 2, 3))), (zipped, lambda: (n for n in (1, 2, 3)))],
)
def test_an_iterator_that_a_frame_can_not_move_runs_eagerly(tmp_path, function, make):
    cached = cache_compile(function, cache_dir=tmp_path)
    for _ in range(2):
        numbers, others = make(), make()
        assert torch.equal(cached(X, numbers), function(X, others))
        assert list(numbers) == list(others)
    assert cached.cache_info().stored == 0


def backwards(x, items):
    walk = reversed(items)
    items[0] = 7
    return x * sum([n for n, _ in zip(walk, range(3), strict=True)])


def test_a_list_that_changes_while_it_is_walked_backwards_is_refused(tmp_path):
    cached = cache_compile(backwards, cache_dir=tmp_path)
    assert torch.equal(cached(X, [1, 2, 3]), backwards(X, [1, 2, 3]))
    (reason,) = cached.explain()[0].reasons
    assert "changes while it is walked" in reason


def grow(x, items):
    for n in items:
        x = x + n
        items.append(n)
    return x


def grow_in_a_map(x, items):
    return x * sum(list(map(items.append, items)))


@pytest.mark.parametrize("function", [grow, grow_in_a_map])
def test_a_trace_of_a_deque_that_grows_while_it_is_walked_ends(tmp_path, function):
    cached = cache_compile(function, cache_dir=tmp_path)
    with pytest.raises(RuntimeError, match="mutated during iteration"):
        cached(X, collections.deque([1, 2]))
    assert cached.cache_info().stored == 0


class Kept:
    def __init__(self):
        self.iterator, self.asked = iter((1, 2, 3)), []

    def __iter__(self):
        self.asked.append("iter")
        return self

    def __next__(self):
        self.asked.append("next")
        return next(self.iterator)


def of_a_set(x, given):
    return x * (2 if {1}.issuperset(given) else 3)


def unpacked(x, given):
    a, *_ = given
    return x * a


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize(
    ("rule", "function"), [("obstacle_of_call", of_a_set), ("obstacle_of_operands", unpacked)]
)
def test_what_c_code_walks_is_left_as_python_leaves_it(
    tmp_path, monkeypatch, rule, function, is_on
):
    monkeypatch.setenv("NPUGX_CACHE_VERIFY", "off")
    if not is_on:
        monkeypatch.setattr(walked_in_c, rule, lambda *_: None)

    def run(call):
        given = Kept()
        result = call(torch.ones(2), given)
        return result.tolist(), given.asked, list(given.iterator)

    wanted = run(function)
    assert (run(cache_compile(function, cache_dir=tmp_path)) == wanted) is is_on
