"""Replaces several matched calls of a graph by one call, if that is safe.

We don't use torch's matcher, because it ignores keyword arguments that a pattern does not name, and
because it loads Inductor. A match is replaced only if nothing else uses the values that disappear,
nothing writes to its inputs in between, all calls run on one stream, and each new value has the
type and sizes of the old one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import fx

from npugx_cache.backend import lowering
from npugx_cache.backend.passes import layout
from npugx_cache.backend.passes.aliasing import known
from npugx_cache.events import logger
from npugx_cache.private import schemas

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def name_of(node: object) -> str:
    """The name of a node's operator, as "npu::npu_quantize"; "" if it calls no operator."""
    schema = schemas.schema_of(node.target) if isinstance(node, fx.Node) else None
    return schema.name if schema is not None else ""


class Match(NamedTuple):
    """Calls that can become one.

    calls: the calls to replace. inputs: the values that the fused call reads. results: the values
    that other calls may use.
    """

    calls: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]


class Calls:
    """Inserts new calls before the node `place`, with their traced values."""

    def __init__(self, place: fx.Node) -> None:
        self._place = place
        self.made: list[fx.Node] = []

    def call(self, target: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> fx.Node:
        """Insert a call. Raises LookupError if `target` is None, and any error of the operator."""
        if target is None:
            raise LookupError("this torch_npu has no such operator")
        with self._place.graph.inserting_before(self._place):
            node = self._place.graph.call_function(target, args, kwargs)
        self.made.append(node)
        lowering.trace_value(node)
        if self._place.stack_trace:
            node.meta["stack_trace"] = self._place.stack_trace
        return node


def substitute(
    graph: fx.Graph,
    match: Match,
    build: Callable[[Calls], Mapping[fx.Node, fx.Node]],
    *,
    strides: bool = True,
) -> bool:
    """Replace a match by the calls that `build` inserts; return whether that was possible.

    `build` returns the new value of each result. strides: whether the new values must have the
    strides and offsets of the old ones. If the match can't be replaced, the graph is not changed.
    """
    place = _place(graph, match)
    if place is None:
        return False
    calls = Calls(place)
    try:
        pairs = build(calls)
    except Exception as error:  # noqa: BLE001 - torch_npu refuses arguments with various errors
        logger.debug("%s is not fused: %s", match.calls[0], error)
        _erase(calls.made)
        return False
    if not all(_is_like(old, new, strides=strides) for old, new in pairs.items()):
        _erase(calls.made)
        return False
    for old, new in pairs.items():
        old.replace_all_uses_with(new)
    order = {node: position for position, node in enumerate(graph.nodes)}
    _erase(sorted(match.calls, key=order.__getitem__))
    return True


def _place(graph: fx.Graph, match: Match) -> fx.Node | None:
    """The call of a match before which the fused call can be inserted, the first or the last.

    None if neither is possible.
    """
    aliasing = known(graph)
    if aliasing is None or not aliasing.one_stream(match.calls):
        return None
    at = aliasing.position
    first, last = min(match.calls, key=at.__getitem__), max(match.calls, key=at.__getitem__)
    places = frozenset[int]().union(*(aliasing.places(node) for node in match.inputs))
    if aliasing.written(places, at[first] - 1, at[last] + 1):
        return None
    late = [node for node in match.inputs if at[node] > at[first]]
    if not late:
        return first
    users = (user for node in match.results for user in node.users if user not in match.calls)
    in_order = all(at[user] > at[last] for user in users)
    return last if in_order and aliasing.one_stream((*match.calls, *late)) else None


def _is_like(old: fx.Node, new: fx.Node, *, strides: bool) -> bool:
    before, after = layout.tensor(old), layout.tensor(new)
    if before is None or after is None:
        return False
    if strides:
        return layout.same_layout(before, after)
    return layout.same_kind(before, after) and layout.same_sizes(before, after)


def _erase(calls: list[fx.Node]) -> None:
    for node in reversed(calls):
        node.graph.erase_node(node)
