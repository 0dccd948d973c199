"""Folds copies back: `y = op(x, ...); x.copy_(y)` becomes `op_(x, ...)`.

Functionalisation leaves such copies: it turns each write to an input into a new value and, at the
end of the graph, a copy of that value into the input. Our own graphs have such copies only where
the user wrote them (`cache.copy_(cache * decay)`).

The write moves from the copy up to the call, so no call in between may use `x`, nor any other input
if inputs may overlap. `y` becomes `x`, so `y` must not be returned, and after the copy neither may
be written to while the other is still used.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import fx

from npugx_cache.backend.passes import layout
from npugx_cache.backend.passes.aliasing import Aliasing, known
from npugx_cache.backend.passes.copies import COPY
from npugx_cache.backend.passes.same_memory import same_elements, same_position
from npugx_cache.backend.passes.variants import overwritable, overwrite


class CopyBack(NamedTuple):
    """A copy that may be folded: `copy` writes `result` to `target`.

    `result` lies in the memory `place` that `call` allocated, and `call` may write over `source`.
    """

    copy: fx.Node
    target: fx.Node
    result: fx.Node
    call: fx.Node
    source: fx.Node
    place: int


def reinplace_inputs(graph: fx.Graph, *, distinct_inputs: bool = False) -> int:
    """Fold copies into the same value that the call reads; returns how many were folded."""
    return _fold(graph, distinct_inputs=distinct_inputs, views=False)


def recover_view_inplace(graph: fx.Graph, *, distinct_inputs: bool = False) -> int:
    """Fold copies of a value computed from a view, as `x.copy_(op(x.view(a)).view(b))`."""
    return _fold(graph, distinct_inputs=distinct_inputs, views=True)


def _fold(graph: fx.Graph, *, distinct_inputs: bool, views: bool) -> int:
    copies = [node for node in graph.nodes if node.target == COPY]
    aliasing = known(graph, distinct_inputs=distinct_inputs) if copies else None
    if aliasing is None:
        return 0
    folded = 0
    for copy in copies:
        found = _find(aliasing, copy)
        if found is None or (found.source is not found.target) is not views:
            continue
        if _fits(found) and _nobody_sees(aliasing, found):
            _rewrite(aliasing, found)
            folded += 1
    return folded


def _find(aliasing: Aliasing, copy: fx.Node) -> CopyBack | None:
    target, result = copy.args[:2]
    assert isinstance(target, fx.Node)
    assert isinstance(result, fx.Node)
    place = aliasing.own(result)
    if place is None:
        return None
    call = aliasing.roots[place]
    source = overwritable(call)
    if source is None or aliasing.passed_twice(call, source):
        return None
    return CopyBack(copy, target, result, call, source, place)


def _fits(found: CopyBack) -> bool:
    """Whether the call, if it wrote over its argument, would write exactly what the copy writes."""
    source, value = layout.tensor(found.source), layout.tensor(found.call)
    return (
        source is not None
        and value is not None
        # Offsets must be equal too, or the traced views of the result would have wrong offsets.
        and layout.same_layout(source, value)
        and layout.is_dense(source)
        and same_elements(found.result, found.call)
        and same_position(found.target, found.source, found.result, found.call)
    )


def _nobody_sees(aliasing: Aliasing, found: CopyBack) -> bool:
    own, target = frozenset({found.place}), aliasing.places(found.source)
    call, copy = aliasing.position[found.call], aliasing.position[found.copy]
    end = len(aliasing.position)
    if not aliasing.may_move(found.place):
        return False
    if aliasing.is_returned(own) or aliasing.touched(target, call, copy):
        return False
    if aliasing.touched(own, copy, end) and aliasing.written(own | target, copy, end):
        return False
    return all(aliasing.one_segment(places, found.call) for places in (own, target))


def _rewrite(aliasing: Aliasing, found: CopyBack) -> None:
    aliasing.merge(found.place, aliasing.places(found.source))
    aliasing.note_write(found.call, aliasing.places(found.source))
    overwrite(found.call)
    found.copy.replace_all_uses_with(found.target)
    found.copy.graph.erase_node(found.copy)
