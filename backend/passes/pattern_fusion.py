"""Pattern fusion: replaces the calls that registered patterns match.

torch's matcher accepts a match only among calls between which nothing is written. It does not
consider that the replacement may return a view where the pattern returned new memory, or the
reverse. Therefore we accept a match only if nothing writes to its results, or to its inputs while
the results are used. If the returned values of the graph would alias differently after all
replacements, we restore the graph.
"""

from __future__ import annotations

import copy
import operator
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend import lowering, patterns
from npugx_cache.backend.passes.aliasing import Aliasing, known
from npugx_cache.backend.passes.view_to_reshape import views_to_reshapes
from npugx_cache.events import logger

if TYPE_CHECKING:
    from torch import fx


def fuse_patterns(graph: fx.Graph) -> int:
    """Apply all registered patterns; returns how many matches were replaced."""
    registered = patterns.registered()
    if not registered or known(graph) is None:
        return 0
    from npugx_cache.private import patterns as torchs  # loads Inductor

    matcher = torchs.compiled(registered, _keeps_memory)
    module: Any = graph.owning_module
    # The matcher would count an unused getitem node among the users of a call.
    for node in reversed(graph.nodes):
        if node.target is operator.getitem and not node.users:
            graph.erase_node(node)
    before, visible = copy.deepcopy(graph), _visible(graph)
    count = torchs.apply(matcher, graph)
    if not count:
        return 0
    for node in graph.nodes:
        if "val" not in node.meta:
            lowering.trace_value(node)
    if _visible(graph) != visible:
        logger.warning("pattern fusion undone: results would alias differently than before")
        module.graph = before
        return 0
    graph.lint()
    views_to_reshapes(graph)
    return count


def _keeps_memory(match: Any) -> bool:
    nodes = match.nodes
    aliasing = known(nodes[0].graph)
    if aliasing is None or not aliasing.one_stream(nodes):
        return False
    at, end = max(aliasing.position[node] for node in nodes), len(aliasing.position)
    results = frozenset[int]().union(
        *(aliasing.places(node) for node in match.output_nodes() if node is not None)
    )
    inputs = frozenset[int]().union(
        *(aliasing.places(each) for node in nodes for each in node.all_input_nodes)
    )
    first = min(aliasing.position[node] for node in nodes)
    if aliasing.written(results, first, end):
        return False
    return not aliasing.written(inputs, at, aliasing.last_touch(results) + 1)


def _visible(graph: fx.Graph) -> list[tuple[bool, tuple[bool, ...]]]:
    """For each returned value: whether it may lie in memory from outside, and which share it."""
    aliasing = Aliasing(graph)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    values: list[fx.Node] = []
    torch.fx.node.map_arg(output.args, values.append)
    places = [aliasing.places(value) for value in values]
    outside = [aliasing.own(value) is None for value in values]
    return [
        (out, tuple(bool(own & other) for other in places))
        for own, out in zip(places, outside, strict=True)
    ]
