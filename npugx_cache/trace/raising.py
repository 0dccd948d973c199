"""Calls that eager raises on, though torch's fake kernels accept them.

In a graph the error would come too late or not at all: Dynamo makes changes to Python objects after
the graph, and calls whose results nothing uses are dropped.
"""

from __future__ import annotations

import torch

from npugx_cache import location
from npugx_cache.trace.reasons import NotEager

aten = torch.ops.aten
_PRODUCTS = frozenset(
    {
        *(aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default),
        *(aten.addmm.default, aten.baddbmm.default, aten.addmv.default, aten.linear.default),
    }
)
_CHECKED = frozenset({"cpu", "cuda"})
"""Devices whose kernels demand equal dtypes; other vendors' may cast."""


def refuse_mixed_products(graph: torch.fx.GraphModule) -> None:
    """Raise NotEager for a matrix product of tensors of different dtypes."""
    for node in graph.graph.nodes:
        if node.target not in _PRODUCTS:
            continue
        given = [each.meta["val"] for each in node.all_input_nodes]
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        dtypes = sorted({str(value.dtype).removeprefix("torch.") for value in tensors})
        if len(dtypes) > 1 and {value.device.type for value in tensors} <= _CHECKED:
            what = f"{node.target} is given {' and '.join(dtypes)}, which eager refuses"
            place = location.of_text(node.meta.get("stack_trace"))
            raise NotEager(location.reason(what, place, "cast them to one dtype"))
