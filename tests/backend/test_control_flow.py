"""Graphs with graphs inside, given to the backend without the cache: results are eager's."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.nn.attention.flex_attention import flex_attention

from npugx_cache.backend import compile_fx
from npugx_cache.backend.graph import to_program
from npugx_cache.backend.lowering import lower
from npugx_cache.portable import NotPortable

HIGHER = torch.ops.higher_order


def graph_of(build):
    """A graph module whose nodes `build(graph, root)` makes."""
    root, graph = torch.nn.Module(), fx.Graph()
    graph.output((build(graph, root),))
    return fx.GraphModule(root, graph)


def adding(graph, root):
    first, second = graph.placeholder("first"), graph.placeholder("second")
    return graph.call_function(torch.add, (first, second))


def scanning(graph, root):
    root.combine = graph_of(adding)
    xs = graph.placeholder("xs")
    inner = graph.get_attr("combine")
    found = graph.call_function(HIGHER.associative_scan, (inner, [xs], ()))
    return graph.call_function(torch.mul, (graph.call_function(lambda a: a[0], (found,)), 2))


@pytest.mark.parametrize("rows", [1, 2, 7, 8])
def test_an_associative_scan_becomes_operators(rows):
    xs = torch.randn(rows, 3)
    lowered = lower(graph_of(scanning), [xs], None)
    assert not any("scan" in str(node.target) for node in lowered.graph.nodes)
    torch.testing.assert_close(lowered(xs)[0], xs.cumsum(0) * 2)
    torch.testing.assert_close(compile_fx(graph_of(scanning), [xs])(xs)[0], xs.cumsum(0) * 2)


def of_a_branch(graph, root):
    root.combine = graph_of(adding)
    x, inner = graph.placeholder("x"), graph.get_attr("combine")
    return graph.call_function(HIGHER.invoke_subgraph, (inner, "one", x, x))


def test_another_operator_on_graphs_is_refused_by_its_name():
    with pytest.raises(NotPortable, match="invoke_subgraph contains graphs of its own"):
        to_program(graph_of(of_a_branch))


def either(x):
    return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,))


def attention(x):
    return flex_attention(x, x, x, score_mod=lambda score, b, h, i, j: score + i - j)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch_is_eagers_under_torch_compile(sign):
    x = torch.randn(4).abs() * sign
    with torch.no_grad():
        found = torch.compile(either, backend="npugx", fullgraph=True)(x)
    assert torch.equal(found, x * 2 if sign == 1 else x - 1)


def test_attention_is_its_formula_under_torch_compile():
    x = torch.randn(1, 1, 5, 4)
    with torch.no_grad():
        found = torch.compile(attention, backend="npugx", fullgraph=True)(x)
    place = torch.arange(5.0)
    scores = x @ x.mT * 0.5 + place[:, None] - place
    torch.testing.assert_close(found, scores.softmax(-1) @ x)
