"""How several calls of a graph become one: what is matched, and what has to hold for a match.

Matched by hand and not with torch's matcher: that one ignores keyword arguments which a pattern
does not name, and loads Inductor. A match stands if nothing else uses what disappears, nothing is
written in between, all calls are issued to one stream, and each new value is like the old one.
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
    """The operator that a node calls: "npu::npu_quantize", "aten::view"; "" for anything else."""
    schema = schemas.schema_of(node.target) if isinstance(node, fx.Node) else None
    return schema.name if schema is not None else ""


class Match(NamedTuple):
    """calls: what is replaced; inputs: what the fused call reads; results: what others may use."""

    calls: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]


class Calls:
    """New calls in front of a node, with their traced values."""

    def __init__(self, place: fx.Node) -> None:
        self._place = place
        self.made: list[fx.Node] = []

    def call(self, target: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> fx.Node:
        """Raises what the operator says of the arguments; LookupError for one that is not there."""
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
    """Replace a match by the calls that `build` makes; it returns the new value of each result.

    strides: whether the new values must have those of the old ones. False, and the graph as it was,
    where the match does not stand.
    """
    place = _place(graph, match)
    if place is None:
        return False
    calls = Calls(place)
    try:
        pairs = build(calls)
    except Exception as error:  # noqa: BLE001 - whatever torch_npu has against these arguments
        logger.debug("%s stays as it is: %s", match.calls[0], error)
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
    """Before which call of a match the fused one can stand, the first or the last; or None."""
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
