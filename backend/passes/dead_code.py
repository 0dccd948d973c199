"""Dead-code elimination: drop calls whose results nothing uses and which write to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache.private.schemas import acts

if TYPE_CHECKING:
    from torch import fx


def remove_dead_code(graph: fx.Graph) -> int:
    """Remove pure calls without users, last first, so that chains of them go too.

    Purity is torch's: an operator that writes to an input, draws random numbers (which advances a
    generator) or has a registered effect stays. So does one without results, which can only be
    called for what it does.
    """
    removed = 0
    for node in reversed(list(graph.nodes)):
        is_call = node.op in ("call_function", "get_attr")
        if is_call and not node.users and not node.is_impure() and not acts(node.target):
            graph.erase_node(node)
            removed += 1
    return removed
