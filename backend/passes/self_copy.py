"""Self-copy elimination: `x.copy_(x)` writes what is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npugx_cache.backend.passes.effects import moves_values
from npugx_cache.backend.passes.same_memory import same_memory

if TYPE_CHECKING:
    from torch import fx

COPY = torch.ops.aten.copy_.default


def remove_self_copies(graph: fx.Graph) -> int:
    """Drop copies of a value onto itself, also through views that are the same elements."""
    if moves_values(graph):
        return 0
    removed = 0
    for node in list(graph.nodes):
        if node.target == COPY and same_memory(node.args[0], node.args[1]):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            removed += 1
    return removed
