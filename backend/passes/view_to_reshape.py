"""view -> reshape, after a fusion: a replacement may give its result other strides than before.

`view` refuses strides that don't fit and `reshape` copies. A copy must not show, so a view that the
caller gets, or through which or behind which somebody writes, stays a view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npugx_cache.backend.passes.aliasing import known

if TYPE_CHECKING:
    from torch import fx

aten = torch.ops.aten


def views_to_reshapes(graph: fx.Graph) -> int:
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
