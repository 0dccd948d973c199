"""What a function does with streams, events and scopes that a graph of Dynamo's does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache import location
from npugx_cache._compat import opaque, streams, vendor_scopes

if TYPE_CHECKING:
    import torch


def lost_order(graph_module: torch.fx.GraphModule) -> str | None:
    """Why the graph, run as it is, would not issue what eager issues; None if it would."""
    for name, stack in opaque.folded_queries(graph_module):
        what, change = f"{name} is answered while tracing", "ask outside the cached function"
        return location.reason(what, location.of_text(stack), change)
    switch = streams.unpaired_switch(graph_module.graph)
    if switch is not None:
        what, change = "the current stream is set", 'use a block: "with torch.npu.stream(s):"'
        return location.reason(what, location.of_text(switch.stack_trace), change)
    call = streams.call_without_streams(graph_module.graph)
    if call is not None:
        what, change = f"{call.target} is called without an accelerator", "leave it out there"
        return location.reason(what, location.of_text(call.stack_trace), change)
    for scope in filter(vendor_scopes.begins, graph_module.graph.nodes):
        what, change = "a scope of torch_npu's has no counterpart", "use npugx_cache.backend.scope"
        return location.reason(what, location.of_text(scope.stack_trace), change)
    return None
