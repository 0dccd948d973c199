"""Lets a call write its result over an argument that nothing uses after the call.

`y = x * 2; z = y + 1` becomes `y = x * 2; y += 1`. The conditions:

- Result and argument have the same sizes, strides, type and device. The number of elements is not
  enough: see `[2] + [1, 2]`.
- The argument covers all of the memory that was allocated for it, because the caller may get it.
- No other argument may overlap it: `torch.diff` subtracts two views of one tensor.
- Nothing uses the old values after the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache.backend.passes import layout
from npugx_cache.backend.passes.aliasing import Aliasing, known
from npugx_cache.backend.passes.variants import overwritable, overwrite

if TYPE_CHECKING:
    from torch import fx


def reinplace(graph: fx.Graph) -> int:
    """Make calls write over intermediates that are not used afterwards; returns how many."""
    aliasing = known(graph)
    rewritten = 0
    for node in list(graph.nodes) if aliasing is not None else ():
        source = overwritable(node)
        if aliasing is None or source is None or not _may_overwrite(aliasing, node, source):
            continue
        place = aliasing.own(node)
        assert place is not None
        aliasing.merge(place, aliasing.places(source))
        aliasing.note_write(node, aliasing.places(source))
        overwrite(node)
        rewritten += 1
    return rewritten


def _may_overwrite(aliasing: Aliasing, node: fx.Node, source: fx.Node) -> bool:
    place, result = aliasing.own(source), aliasing.own(node)
    before, after = layout.tensor(source), layout.tensor(node)
    if place is None or result is None or before is None or after is None:
        return False
    places = frozenset({place})
    return (
        aliasing.roots[result] is node
        and layout.same_layout(before, after)
        and aliasing.fills_its_memory(source)
        and aliasing.last_touch(places) <= aliasing.position[node]
        and not aliasing.passed_twice(node, source)
        and aliasing.ordered_before(places, node)
    )
