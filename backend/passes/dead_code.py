"""Dead-code elimination: drops calls without effects whose results nothing uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache.backend import subgraphs
from npugx_cache.private.schemas import acts

if TYPE_CHECKING:
    from torch import fx


def remove_dead_code(graph: fx.Graph) -> int:
    """Remove pure calls without users, from last to first, so that whole chains are removed.

    Torch decides what is pure: a call that writes to an input, draws random numbers (which advances
    a generator) or has a registered effect stays. We also keep an operator without results, because
    it can only have been called for an effect, and a call of graphs inside the graph, which torch
    takes for pure although such a graph may write to what it is given.
    """
    removed = 0
    for node in reversed(list(graph.nodes)):
        is_call = node.op in ("call_function", "get_attr")
        if is_call and not node.users and not _has_effect(node):
            graph.erase_node(node)
            removed += 1
    return removed


def _has_effect(node: fx.Node) -> bool:
    return node.is_impure() or acts(node.target) or subgraphs.runs_graphs(node)
