"""Dead-code elimination: drop calls whose results nothing uses and which write to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import fx

aten = torch.ops.aten
_PRODUCTS = frozenset(
    {
        *(aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default),
        *(aten.addmm.default, aten.baddbmm.default, aten.addmv.default),
        *(aten.linear.default, aten.convolution.default),
    }
)


def remove_dead_code(graph: fx.Graph) -> int:
    """Remove pure calls without users, last first, so that chains of them go too.

    Purity is torch's: an operator that writes to an input, draws random numbers (which advances a
    generator) or has a registered effect stays. So does one that is known to raise.
    """
    removed = 0
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "get_attr") and not node.users and not node.is_impure():
            if _raises(node):
                continue
            graph.erase_node(node)
            removed += 1
    return removed


def _raises(node: fx.Node) -> bool:
    """Whether it multiplies tensors of different dtypes, which torch's fake kernels let pass."""
    values = [given.meta.get("val") for given in node.all_input_nodes]
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    return len(dtypes) > 1 and node.target in _PRODUCTS
