"""Dead-code elimination: drop calls whose results nothing uses and which write to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import fx


def remove_dead_code(graph: fx.Graph) -> int:
    """Remove pure calls without users, last first, so that chains of them go too.

    Purity is torch's: an operator that writes to an input, draws random numbers (which advances a
    generator) or has a registered effect stays.
    """
    removed = 0
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "get_attr") and not node.users and not node.is_impure():
            graph.erase_node(node)
            removed += 1
    return removed
