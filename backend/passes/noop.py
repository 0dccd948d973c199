"""No-op removal: drops calls that return an alias of their input with the same layout.

The operators are those of torch's own list of no-ops that return a view of their input. An operator
that returns a copy (`clone`) is left to `copies`, because the copy may be written to. An alias that
the graph returns is kept, because eager returns a new tensor object there and the caller can tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npugx_cache.backend.passes import layout
from npugx_cache.backend.passes.effects import moves_values

if TYPE_CHECKING:
    from torch import fx

aten = torch.ops.aten


def remove_noops(graph: fx.Graph) -> int:
    """Replace the uses of each no-op by its input; returns how many were replaced."""
    if moves_values(graph):
        return 0  # `y = x.view(...); y.t_()` must not become `x.t_()`
    removed = 0
    for node in list(graph.nodes):
        if node.target in _ALIASING and _same_layout(node) and not any(map(_sees, node.users)):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            removed += 1
    return removed


def _sees(user: fx.Node) -> bool:
    """Whether a user may pass its argument on to the caller as the same tensor object."""
    return user.op == "output" or user.is_impure()


def _same_layout(node: fx.Node) -> bool:
    before, after = layout.tensor(node.args[0]), layout.tensor(node)
    return before is not None and after is not None and layout.same_layout(before, after)


_ALIASING = frozenset(
    {
        aten.alias.default,
        aten.detach.default,
        aten.view.default,
        aten.view.dtype,
        aten._unsafe_view.default,  # noqa: SLF001 - the name of an operator
        aten.expand.default,
        aten.slice.Tensor,
        aten.permute.default,
        aten.transpose.int,
        aten.squeeze.default,
        aten.squeeze.dim,
    }
)
