"""Makes a graph smaller with torch's minifier, as long as a property holds. For triage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._functorch.fx_minifier import minifier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx


def smallest(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    holds: Callable[[fx.GraphModule, Sequence[Any]], bool],
) -> tuple[fx.GraphModule, Sequence[Any]]:
    """The smallest graph found for which `holds`, and its inputs.

    Parts of the graph become inputs, with the values that they have in a run. The minifier tells
    stderr how far it is.
    """
    return minifier(graph_module, inputs, holds, dump_state=lambda *_: None)
