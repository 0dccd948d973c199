"""Finds the graphs inside a graph: branches of `torch.cond`, bodies of loops, and what they call.

They are attributes of the graph module. A rule for the nodes of a graph must hold for theirs too.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
from torch import fx

from npugx_cache.backend.program import CONTROL_FLOW
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator


def nodes_of(graph_module: fx.GraphModule | None) -> Iterator[fx.Node]:
    """The nodes of a graph, and of all graphs inside it; none if there is no graph."""
    if graph_module is not None:
        for module in graph_module.modules():
            if isinstance(module, fx.GraphModule):
                yield from module.graph.nodes


def inner_nodes_of(graph_module: fx.GraphModule) -> Iterator[fx.Node]:
    """The nodes of all graphs inside a graph."""
    return (node for node in nodes_of(graph_module) if node.graph is not graph_module.graph)


def asks_tensor(node: fx.Node) -> bool:
    """Whether a node calls a method of a tensor, and not one of a number.

    What is no number for certain counts as a tensor.
    """
    if node.op != "call_method":
        return False
    asked = next(iter(node.args), None)
    if isinstance(asked, fx.Node):
        asked = asked.meta.get("example_value")
    return not isinstance(asked, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def run_by(graph_module: fx.GraphModule, call: fx.Node) -> Iterator[fx.GraphModule]:
    """The graphs that a call in a graph runs."""
    for node in call.all_input_nodes:
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(graph_module)
            if isinstance(value, fx.GraphModule):
                yield value


def runs_graphs(node: fx.Node) -> bool:
    """Whether a call runs graphs inside the graph, in a way that a stored program can."""
    named = runtime.operator_name(node.target)
    return named is not None and named[0] == "hop" and named[1] in CONTROL_FLOW
