"""Makes a call once that a graph makes several times, such as the mask that each layer prepares.

Calls are equal if they call the same operator with the same arguments. The first of them moves up
to where its arguments are there, so that the layers of a model stay alike, and are one function in
the generated code. The conditions:

- The operator is one of torch's, and does nothing but compute its result.
- Nothing writes to the results, and the caller does not get them, because eager's are several.
- Nothing writes to what the calls read, between the place to which the first moves and the last.
- A call that may raise moves past no write that the caller can see: after an exception, the caller
  finds what eager has written until then.
- A shared result is kept longer than eager keeps it. So all that take memory of their own may take
  together at most an eighth of the memory of the graph's inputs.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from npugx_cache.backend.passes import effects, layout
from npugx_cache.backend.passes.aliasing import known
from npugx_cache.private import schemas

if TYPE_CHECKING:
    from npugx_cache.backend.passes.aliasing import Aliasing

_SHARE_OF_INPUTS = 1 / 8
_SIZES = ("aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::sym_storage_offset")
_RAISING = (
    *("aten::div", "aten::floor_divide", "aten::remainder", "aten::fmod", "aten::pow"),
    *("aten::true_divide", "aten::__lshift__", "aten::__rshift__"),
    *("aten::bitwise_left_shift", "aten::bitwise_right_shift"),
)
"""Pointwise operators that may raise for some numbers, such as a zero that divides an integer."""


def merge_equal_calls(graph: fx.Graph, *, share: float = _SHARE_OF_INPUTS) -> int:
    """Drop each call that repeats an earlier one; returns how many were dropped.

    `share`: what shared results may take, as a share of the memory of the graph's inputs.
    """
    aliasing = known(graph)
    if aliasing is None or any(map(effects.switches_stream, graph.nodes)):
        return 0  # what one stream computes is not there yet for another stream
    merging, dropped = _Merging(graph, aliasing, share), 0
    first_of: dict[Any, fx.Node] = {}
    for node in filter(_only_computes, list(graph.nodes)):
        first = first_of.setdefault(_content(node), node)
        if first is not node and merging.is_allowed(first, node):
            merging.merge(first, node)
            dropped += 1
    return dropped


class _Merging:
    """Decides about calls, and merges them.

    Positions are those of the aliasing, but for calls that moved: `_places` has where each call
    stands now, because what reads through a view that moved up would follow the view.
    """

    def __init__(self, graph: fx.Graph, aliasing: Aliasing, share: float) -> None:
        self._aliasing = aliasing
        self._top = [node for node in graph.nodes if node.op == "placeholder"]
        self._bytes_left = share * sum(_bytes(node) or 0 for node in self._top)
        self._shared: set[fx.Node] = set()
        self._places = dict(aliasing.position)
        self._seen_writes = [
            at for node, at in aliasing.position.items() if self._is_seen(effects.of(node))
        ]

    def is_allowed(self, first: fx.Node, node: fx.Node) -> bool:
        """Whether `first` may move up, and stand for `node`, which calls the same."""
        if not _is_alike(first, node) or any(map(_is_handed_on, (first, node))):
            return False
        start, end = self._start(first), self._places[node]
        passed = any(start < each < self._places[first] for each in self._seen_writes)
        if passed and not _never_raises(first):
            return False
        if not _takes_memory(first):
            return True
        read = frozenset[int]().union(*map(self._aliasing.places, first.all_input_nodes))
        if self._aliasing.written(read, start, end):
            return False
        places = self._aliasing.places(first) | self._aliasing.places(node)
        if self._aliasing.visible(places) or self._is_written(places):
            return False
        size = _bytes(first)
        return first in self._shared or (size is not None and size <= self._bytes_left)

    def merge(self, first: fx.Node, node: fx.Node) -> None:
        if first not in self._shared:
            self._shared.add(first)
            self._bytes_left -= (_bytes(first) or 0) if _takes_memory(first) else 0
            self._places[first] = self._start(first)
            self._move_up(first)
        node.replace_all_uses_with(first)
        node.graph.erase_node(node)

    def _start(self, first: fx.Node) -> int:
        """The place behind which a call may stand: that of the last of its arguments."""
        return max((self._places[each] for each in first.all_input_nodes), default=-1)

    def _move_up(self, first: fx.Node) -> None:
        """Move a call to behind the last of its arguments, and behind the inputs of the graph."""
        if before := [*first.all_input_nodes, *self._top[-1:]]:
            max(before).append(first)
        else:
            next(iter(first.graph.nodes)).prepend(first)

    def _is_written(self, places: frozenset[int]) -> bool:
        return self._aliasing.written(places, -1, len(self._aliasing.position))

    def _is_seen(self, done: effects.Effects) -> bool:
        """Whether a call writes to memory that the caller can see."""
        written = (self._aliasing.visible(self._aliasing.places(each)) for each in done.written)
        return done.unknown or any(written)


def _only_computes(node: fx.Node) -> bool:
    """Whether all that a call does is its result, which the arguments alone decide."""
    if node.op != "call_function" or not schemas.is_pure(node.target):
        return False
    schema = schemas.schema_of(node.target)
    if schema is None:
        return True  # arithmetic on sizes, or an item of a result
    gives_tensors = all(each.holds_tensors for each in schema.returns)
    return schema.namespace in ("aten", "prims") and (gives_tensors or schema.name in _SIZES)


def _content(node: fx.Node) -> Any:
    named = tuple((name, _frozen(value)) for name, value in sorted(node.kwargs.items()))
    return node.target, _frozen(node.args), named


def _frozen(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    if isinstance(value, slice):
        return "slice", _frozen((value.start, value.stop, value.step))
    return type(value), repr(value)  # 1 is not True, and 0.0 is not -0.0


def _is_alike(left: fx.Node, right: fx.Node) -> bool:
    """Whether two results have the same form; sizes that only data tell have names of their own."""
    values = [node.meta.get("val") for node in (left, right)]
    pairs = [value if isinstance(value, (list, tuple)) else [value] for value in values]
    return len(pairs[0]) == len(pairs[1]) and all(map(_are_alike, *pairs))


def _are_alike(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return layout.same_layout(left, right)
    numbers = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
    return isinstance(left, numbers) and str(left) == str(right)


def _is_handed_on(node: fx.Node) -> bool:
    """Whether a user of a value writes to it, or gives it to the caller as the same object."""
    found = [(user.op, effects.of(user)) for user in node.users]
    return any(op == "output" or done.unknown or node in done.written for op, done in found)


def _takes_memory(node: fx.Node) -> bool:
    return effects.may_hold_tensors(node) and not effects.of(node).is_view


def _never_raises(node: fx.Node) -> bool:
    schema = schemas.schema_of(node.target)
    if schema is None:
        return node.target is operator.getitem
    is_pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    is_fresh = not any(map(effects.may_hold_tensors, node.all_input_nodes))
    is_simple = is_fresh or schema.name in _SIZES or effects.of(node).is_view
    return is_simple or (is_pointwise and schema.name not in _RAISING)


def _bytes(node: fx.Node) -> int | None:
    """The memory of a value in bytes, at the sizes of the trace; None if only data tell."""
    value, total = node.meta.get("val"), 0
    for part in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(part, torch.Tensor):
            count: Any = part.numel()
            number = count.node.hint if isinstance(count, torch.SymInt) else count
            if number is None:
                return None
            total += number * part.element_size()
    return total
