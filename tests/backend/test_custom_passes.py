"""The user's own passes: they run, they are part of the key, and their faults are told."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from npugx_cache import cache_compile
from npugx_cache.backend import compile_fx
from npugx_cache.errors import OptionError, PassError
from npugx_cache.key.recipe import function_digest

aten = torch.ops.aten


def to_sub(graph_module, example_inputs, options):
    if len(example_inputs) != 1 or options.capture_limit != 64:
        raise ValueError(example_inputs)
    for node in graph_module.graph.nodes:
        if node.target == aten.add.Tensor:
            node.target = aten.sub.Tensor


def add_one(x):
    return x + 1


@pytest.mark.parametrize("name", ["post_grad_custom_pre_pass", "post_grad_custom_post_pass"])
def test_a_custom_pass_changes_what_runs(name, tmp_path):
    cached = cache_compile(add_one, cache_dir=tmp_path, options={name: to_sub})
    assert cached(torch.ones(2)).tolist() == [0, 0]
    again = cache_compile(add_one, cache_dir=tmp_path, options={name: to_sub})
    assert again(torch.ones(2)).tolist() == [0, 0]
    assert again.cache_info().hits == 1
    plain = cache_compile(add_one, cache_dir=tmp_path)
    assert plain(torch.ones(2)).tolist() == [2, 2]
    assert plain.cache_info().misses == 1


def test_a_node_that_a_custom_pass_adds_is_known_to_later_passes():
    def double(graph_module, *_):
        graph = graph_module.graph
        (add,) = graph.find_nodes(op="call_function", target=aten.add.Tensor)
        with graph.inserting_after(add):
            more = graph.call_function(aten.mul.Tensor, (add, 2))
        add.replace_all_uses_with(more, delete_user_cb=lambda user: user is not more)

    graph = torch.fx.symbolic_trace(add_one)
    run = compile_fx(graph, [torch.ones(2)], {"post_grad_custom_pre_pass": double})
    assert run(torch.ones(2)).tolist() == [4, 4]


def test_what_a_custom_pass_raises_reaches_the_caller(tmp_path):
    def fails(*_):
        raise KeyError("mine")

    cached = cache_compile(
        add_one, cache_dir=tmp_path, options={"post_grad_custom_pre_pass": fails}
    )
    with pytest.raises(PassError, match=r"'post_grad_custom_pre_pass'.*KeyError"):
        cached(torch.ones(2))


def test_a_custom_pass_may_not_change_the_inputs():
    def adds_an_input(graph_module, *_):
        with graph_module.graph.inserting_before(next(iter(graph_module.graph.nodes))):
            graph_module.graph.placeholder("more")

    graph = torch.fx.symbolic_trace(add_one)
    with pytest.raises(PassError, match="changed the inputs"):
        compile_fx(graph, [torch.ones(2)], {"post_grad_custom_post_pass": adds_an_input})


# --- identity


def closure(value):
    def custom(*_):
        return value

    return custom


class Named:
    def __init__(self, name):
        self.name = name

    def __call__(self, *_):
        pass

    def uuid(self):
        return self.name


class Stateful:
    def __call__(self, *_):
        pass

    def method(self, *_):
        pass


SCALE = 1


def reads_a_global(*_):
    return [SCALE for _ in range(2)]


def test_functions_that_do_different_things_have_different_digests():
    assert function_digest(closure(1)) != function_digest(closure(2))
    assert function_digest(closure(1)) == function_digest(closure(1))
    assert function_digest(partial(to_sub, 1)) != function_digest(partial(to_sub, 2))
    assert function_digest(Named("a")) != function_digest(Named("b"))
    assert function_digest(Named("a")) == function_digest(Named("a"))
    assert function_digest(closure(lambda: 1)) != function_digest(closure(lambda: 2))


def test_a_global_that_a_custom_pass_reads_counts(monkeypatch):
    before = function_digest(reads_a_global)
    monkeypatch.setitem(globals(), "SCALE", 2)
    assert function_digest(reads_a_global) != before


@pytest.mark.parametrize("function", [Stateful(), Stateful().method, closure(object())])
def test_what_has_no_identity_is_refused_when_the_function_is_decorated(function):
    with pytest.raises(OptionError, match="'post_grad_custom_pre_pass' can't be part of a key"):
        cache_compile(add_one, options={"post_grad_custom_pre_pass": function})


@pytest.mark.thorough
def test_the_graph_after_each_pass_is_written_on_demand(surroundings):
    code = """
import json, glob, torch
from npugx_cache import cache_compile
def f(x):
    return (x * 2).clone() + 1
cache_compile(f)(torch.ones(3))
found = sorted(glob.glob("torch_compile_debug/run_*/npugx_cache/model__0/*.txt"))
print(json.dumps([[name.rpartition("/")[2], open(name).read()] for name in found]))
"""
    written = surroundings.run("-c", code, TORCH_COMPILE_DEBUG="1")
    assert written[0][0] == "000_aot_forward_graph.txt"
    assert "clone" in written[0][1]
    (after,) = [text for name, text in written if name.endswith("_after_remove_copies.txt")]
    assert "clone" not in after
    assert surroundings.beside("quiet").run("-c", code) == []
