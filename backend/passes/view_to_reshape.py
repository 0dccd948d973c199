"""Turns `view` into `reshape` after a fusion, because a fused call may return other strides.

`view` refuses strides that don't fit; `reshape` copies instead. Nobody may observe the copy, so a
view stays a view if the caller can see its memory, or if its memory is written to later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npugx_cache.backend.passes.aliasing import known

if TYPE_CHECKING:
    from torch import fx

aten = torch.ops.aten


def views_to_reshapes(graph: fx.Graph) -> int:
    """Rewrite all views whose memory nobody observes; returns how many."""
    aliasing = known(graph)
    changed = 0
    for node in list(graph.nodes) if aliasing is not None else ():
        if aliasing is None or node.target != aten.view.default:
            continue
        places, at = aliasing.places(node), aliasing.position[node]
        read_only = not aliasing.written(places, at, len(aliasing.position))
        if read_only and not aliasing.visible(places):
            node.target = aten.reshape.default
            changed += 1
    return changed
