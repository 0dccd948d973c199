"""Drops redundant copies: calls whose result equals their input.

Such calls are `clone`, casts to the same type, `pow(x, 1)`, rounding of integers, padding by
nothing, `repeat` by ones, and `cat` of one tensor. Afterwards the copy and its source share memory,
and nobody may be able to observe that: neither is written to while the other is still used, and no
two tensors that the caller sees become aliases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from npugx_cache.backend.passes import layout
from npugx_cache.backend.passes.aliasing import Aliasing, known
from npugx_cache.backend.passes.effects import moves_values
from npugx_cache.backend.passes.same_memory import same_memory

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten


def remove_copies(graph: fx.Graph, *, distinct_inputs: bool = False) -> int:
    """Replace the uses of each redundant copy by its source; returns how many were replaced."""
    copies = [node for node in graph.nodes if _source(node) is not None]
    aliasing = known(graph, distinct_inputs=distinct_inputs) if copies else None
    if aliasing is None:
        return 0
    removed = 0
    for node in copies:
        # Ask for the source again: that of a copy of a copy has changed if a copy was dropped.
        place, source = aliasing.own(node), _source(node)
        assert source is not None
        if place is not None and _may_share(aliasing, node, source, place):
            aliasing.merge(place, aliasing.places(source))
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            removed += 1
    return removed


def _may_share(aliasing: Aliasing, node: fx.Node, source: fx.Node, place: int) -> bool:
    """Whether the copy `node`, which lives in `place`, may live in its source's memory."""
    before, after = layout.tensor(source), layout.tensor(node)
    if before is None or after is None or not layout.same_layout(before, after):
        return False
    if aliasing.roots[place] is not node or not aliasing.may_move(place):
        return False
    at, end = aliasing.position[node], len(aliasing.position)
    copy, original = frozenset({place}), aliasing.places(source)
    if not (aliasing.one_segment(copy, node) and aliasing.one_segment(original, node)):
        return False
    if aliasing.is_returned(copy) and not _may_be_returned(aliasing, source):
        return False
    if aliasing.written(original, at, aliasing.last_touch(copy) + 1):
        return False
    write = aliasing.first_write(place, at)
    if write is None:
        return True
    needed = aliasing.visible(original) or aliasing.touched(original, write - 1, end)
    return layout.is_dense(before) and not needed


def _may_be_returned(aliasing: Aliasing, source: fx.Node) -> bool:
    return not aliasing.visible(aliasing.places(source)) and aliasing.fills_its_memory(source)


def _source(node: fx.Node) -> fx.Node | None:
    """The argument that a call copies; None if the call may return other values."""
    found = _COPIES.get(node.target)
    source = found(node) if found is not None else None
    return source if isinstance(source, fx.Node) else None


def _first(node: fx.Node) -> Any:
    return node.args[0]


def _first_if(condition: Callable[[fx.Node], bool]) -> Callable[[fx.Node], Any]:
    return lambda node: node.args[0] if condition(node) else None


def _is_integer(node: fx.Node) -> bool:
    value = layout.tensor(node)
    return value is not None and not value.dtype.is_floating_point and not value.dtype.is_complex


def _all(items: Any, wanted: int) -> bool:
    return all(isinstance(item, (int, float)) and item == wanted for item in items)


def _only(node: fx.Node) -> Any:
    tensors: Any = node.args[0]
    return tensors[0] if len(tensors) == 1 else None


_COPIES: dict[Any, Callable[[fx.Node], Any]] = {
    aten.clone.default: _first,
    aten._to_copy.default: _first,  # noqa: SLF001 - the name of an operator
    aten.lift_fresh_copy.default: _first,
    aten.ceil.default: _first_if(_is_integer),
    aten.floor.default: _first_if(_is_integer),
    aten.round.default: _first_if(_is_integer),
    aten.trunc.default: _first_if(_is_integer),
    aten.pow.Tensor_Scalar: _first_if(lambda node: _all([node.args[1]], 1)),
    aten.repeat.default: _first_if(lambda node: _all(node.args[1], 1)),
    aten.constant_pad_nd.default: _first_if(lambda node: _all(node.args[1], 0)),
    aten.cat.default: _only,
}


# --- self-copies: `x.copy_(x)` has no effect


COPY = aten.copy_.default


def remove_self_copies(graph: fx.Graph) -> int:
    """Drop copies of a value onto itself, also through views of the same elements."""
    if moves_values(graph):
        return 0
    removed = 0
    for node in list(graph.nodes):
        if node.target == COPY and same_memory(node.args[0], node.args[1]):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            removed += 1
    return removed
