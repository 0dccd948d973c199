"""What code of a tensor that holds others reads of the process and of tensors is heeded (P1)."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import fx, nn
from torch.fx import operator_schemas

from npugx_cache import cache_compile, cached_graph, load_graph

X = torch.arange(6.0).view(2, 3)

pytestmark = pytest.mark.thorough


class Read(torch.Tensor):
    """Integers, with a slot for how many times they count; `asks` says what the code asks."""

    __slots__ = ("times",)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, ints, times=2.0, asks=""):
        return torch.Tensor._make_wrapper_subclass(cls, ints.shape, dtype=torch.float32)

    def __init__(self, ints, times=2.0, asks=""):
        self.ints, self.times, self.asks = ints, times, asks

    def __tensor_flatten__(self):
        return ["ints"], (self.times, self.asks)

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["ints"], *context)

    def whole(self):
        whole = self.ints.to(torch.float32) * self.times
        if self.asks == "threads":
            return whole * torch.get_num_threads()
        if self.asks == "limit":
            return whole * sys.getrecursionlimit()
        return whole + getattr(self.ints, "shift", 0.0)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        factor = 10 if args[0] is args[1] else 1
        return func(*(each.whole() if isinstance(each, cls) else each for each in args)) * factor


LIBRARY = torch.library.Library("npugx_what_holding_reads", "DEF")
LIBRARY.define("wide(Tensor x) -> Tensor")


@torch.library.impl(LIBRARY, "wide", "CompositeExplicitAutograd")
def _wide(x):
    return x.new_ones(sys.getrecursionlimit())


@torch.library.register_fake("npugx_what_holding_reads::wide", lib=LIBRARY)
def _fake_of_wide(x):
    return x.new_empty(sys.getrecursionlimit())


@pytest.fixture
def limit():
    before = sys.getrecursionlimit()
    yield before
    sys.setrecursionlimit(before)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


def product():
    graph = fx.Graph()
    pair = graph.placeholder("a"), graph.placeholder("b")
    graph.output((graph.call_function(torch.mul, pair),))
    return fx.GraphModule(nn.Module(), graph)


def ints():
    return torch.arange(6, dtype=torch.int8).view(2, 3)


def entry_of(folder, *inputs):
    """The entry of the product; asserts that the product is that of eager mode."""
    cached = cached_graph(product(), inputs, cache_dir=folder)
    assert torch.equal(cached(*inputs)[0], torch.mul(*inputs))
    assert cached.entry is not None
    return cached.entry


def test_the_number_of_threads_is_heeded_if_the_code_asks(tmp_path, threads):
    asked = entry_of(tmp_path, X, Read(ints(), asks="threads"))
    torch.set_num_threads(threads + 1)
    assert entry_of(tmp_path, X, Read(ints(), asks="threads")) != asked


def test_an_answer_of_the_process_is_heeded(tmp_path, limit):
    asked = entry_of(tmp_path, X, Read(ints(), asks="limit"))
    sys.setrecursionlimit(limit + 1)
    assert entry_of(tmp_path, X, Read(ints(), asks="limit")) != asked


def test_a_slot_is_heeded_as_an_attribute_is(tmp_path):
    first = entry_of(tmp_path, X, Read(ints(), 2.0))
    assert entry_of(tmp_path, X, Read(ints(), 2.0)) == first
    assert entry_of(tmp_path, X, Read(ints(), 3.0)) != first
    whole = cache_compile(lambda x, weight: x * weight, cache_dir=tmp_path)
    for times in (2.0, 3.0):
        assert torch.equal(whole(X, Read(ints(), times)), X * Read(ints(), times))
    assert whole.cache_info().misses == 2


def test_an_attribute_of_a_tensor_inside_is_heeded(tmp_path):
    entry_of(tmp_path, X, Read(ints()))
    shifted = ints()
    shifted.shift = 2.0
    assert cached_graph(product(), [X, Read(shifted)], cache_dir=tmp_path).entry is None


def test_one_object_is_told_from_two_with_one_memory(tmp_path):
    inside = ints()
    one, other = Read(inside), Read(inside)
    both = entry_of(tmp_path, one, one)
    assert entry_of(tmp_path, one, other) != both
    assert entry_of(tmp_path, other, other) == both


def test_what_a_fake_implementation_asks_of_the_process_is_heeded(tmp_path, limit, monkeypatch):
    # As in a new process: torch evaluates the types of new_empty, which is no code of the user.
    monkeypatch.setattr(operator_schemas, "_SCHEMA_TO_SIGNATURE_CACHE", {})
    wide = torch.ops.npugx_what_holding_reads.wide.default

    def entry():
        graph = fx.Graph()
        graph.output((graph.call_function(wide, (graph.placeholder("x"),)),))
        cached = cached_graph(fx.GraphModule(nn.Module(), graph), [X], cache_dir=tmp_path)
        assert len(cached(X)[0]) == sys.getrecursionlimit()
        return cached.entry

    first = entry()
    assert load_graph(first, cache_dir=tmp_path).entry == first
    sys.setrecursionlimit(limit + 1)
    assert "getrecursionlimit" in load_graph(first, cache_dir=tmp_path).reason
    assert entry() != first
