"""Cat removal: computes the parts of a concatenation directly in their place in the result.

`cat([mm(a, b), mm(c, d)])` along the first dimension becomes an empty result and two `mm.out` calls
that write to its slices. The parts are then views of the result. Therefore:

- Each part is the result of its own call, and the operator has an `.out` form.
- Each part has the type of the result, because `cat` converts types and `.out` refuses to.
- No part is returned, or the caller would get two results that share memory.
- No part occurs twice, or has been given its place in another `cat` already.
- After the `cat`, nothing writes to a part, nor to the result if a part is still used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from npugx_cache.backend import lowering
from npugx_cache.backend.passes import layout
from npugx_cache.backend.passes.aliasing import Aliasing, known
from npugx_cache.backend.passes.layout import Sizes
from npugx_cache.backend.passes.same_memory import same_memory
from npugx_cache.private import schemas

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten


class Cat(NamedTuple):
    """A concatenation. `makers` are the calls that allocate its parts."""

    node: fx.Node
    makers: tuple[fx.Node, ...]


def remove_cats(graph: fx.Graph) -> int:
    """Compute the parts of concatenations in place; returns how many `cat` calls were removed."""
    removed = 0
    for node in list(graph.nodes):
        aliasing = known(graph) if _is_along_rows(node) else None
        cat = _cat(aliasing, node) if aliasing is not None else None
        if cat is not None and aliasing is not None and _fits(aliasing, cat):
            removed += _rewrite(cat)
    return removed


def _is_along_rows(node: fx.Node) -> bool:
    if node.target != aten.cat.default:
        return False
    parts: Any = node.args[0]
    value = layout.tensor(node)
    dim: Any = schemas.given(node, "dim") or 0
    if value is None or dim not in (0, -value.dim()) or len(parts) < 2:
        return False
    return layout.is_contiguous(value)


def _cat(aliasing: Aliasing, node: fx.Node) -> Cat | None:
    parts: Any = node.args[0]
    makers = []
    for part in parts:
        place = aliasing.own(part)
        if place is None or not same_memory(part, aliasing.roots[place]):
            return None
        makers.append(aliasing.roots[place])
    return Cat(node, tuple(makers)) if len(set(makers)) == len(makers) else None


def _fits(aliasing: Aliasing, cat: Cat) -> bool:
    whole = layout.tensor(cat.node)
    assert whole is not None
    at, end = aliasing.position[cat.node], len(aliasing.position)
    own = aliasing.places(cat.node)
    for part in cat.makers:
        places, value = aliasing.places(part), layout.tensor(part)
        if schemas.out_variant(part.target) is None or not _is_slice_of(value, whole):
            return False
        if aliasing.is_returned(places) or aliasing.written(places, at, end):
            return False
        if aliasing.touched(places, at, end) and aliasing.written(own, at, end):
            return False
        if not aliasing.one_segment(places, cat.node):
            return False
    return aliasing.one_segment(own, cat.node)


def _is_slice_of(part: torch.Tensor | None, whole: torch.Tensor) -> bool:
    return (
        part is not None
        and layout.same_kind(part, whole)
        and part.dim() == whole.dim()
        and all(map(layout.same, part.shape[1:], whole.shape[1:]))
        and layout.is_contiguous(part)
    )


def _rewrite(cat: Cat) -> int:
    graph, whole = cat.node.graph, layout.tensor(cat.node)
    assert whole is not None
    first = min(cat.makers)
    sizes = Sizes(first)
    lengths = [sizes.value(part.meta["val"].shape[0]) for part in cat.makers]
    rest = [sizes.value(size) for size in whole.shape[1:]]
    if any(size is None for size in (*lengths, *rest)):
        return 0
    ends = [lengths[0]]
    for length in lengths[1:]:
        ends.append(sizes.add(ends[-1], length))
    with graph.inserting_before(first):
        empty = graph.call_function(
            aten.empty.memory_format,
            ([ends[-1], *rest],),
            {"dtype": whole.dtype, "device": whole.device, "pin_memory": False},
        )
        slices = [
            graph.call_function(aten.slice.Tensor, (empty, 0, start, end))
            for start, end in zip([0, *ends], ends, strict=False)
        ]
    for new in (empty, *slices):
        lowering.trace_value(new)
    _write_parts(cat.makers, slices)
    cat.node.replace_all_uses_with(empty)
    graph.erase_node(cat.node)
    return 1


def _write_parts(parts: Sequence[fx.Node], slices: Sequence[fx.Node]) -> None:
    for part, where in zip(parts, slices, strict=True):
        part.target = schemas.out_variant(part.target)
        part.kwargs = {**part.kwargs, "out": where}
