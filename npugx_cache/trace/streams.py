"""Finds uses of streams, events and scopes that Dynamo's graph does not express.

A function with such a use is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache import location
from npugx_cache.backend import operators, subgraphs
from npugx_cache.private import streams, vendor_scopes
from npugx_cache.trace.observe import opaque

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def lost_order(graph_module: torch.fx.GraphModule) -> str | None:
    """Why the graph would not issue the same work in the same order as eager, or None."""
    for node in subgraphs.inner_nodes_of(graph_module):
        if _is_about_streams(node):
            what = "a stream, an event or a scope is used in a function that torch calls"
            change = "use streams outside of torch.cond, map and the like"
            return location.reason(what, location.of_text(node.stack_trace), change)
    for name, stack in opaque.folded_queries(graph_module):
        what, change = f"{name} is answered while tracing", "ask outside the cached function"
        return location.reason(what, location.of_text(stack), change)
    use = streams.unnumbered(graph_module.graph.nodes)
    if use is not None:
        what, change = streams.UNNUMBERED, "use streams outside the cached function"
        return location.reason(what, location.of_text(use.stack_trace), change)
    switch = streams.unpaired_switch(graph_module.graph)
    if switch is not None:
        what, change = "the current stream is set", 'use a block: "with torch.npu.stream(s):"'
        return location.reason(what, location.of_text(switch.stack_trace), change)
    call = streams.call_without_streams(graph_module.graph)
    if call is not None:
        what = f"{call.target} is called without an accelerator"
        change = "call it only if torch.accelerator.is_available()"
        return location.reason(what, location.of_text(call.stack_trace), change)
    wait = streams.wait_for_another(graph_module.graph)
    if wait is not None:
        what = "this torch traces a wait for the current device as a wait for device 0"
        change = "call torch.accelerator.current_stream().synchronize()"
        return location.reason(what, location.of_text(wait.stack_trace), change)
    elsewhere = streams.other_device(graph_module.graph)
    if elsewhere is not None:
        what, change = "another device becomes current", "call it where that device is current"
        return location.reason(what, location.of_text(elsewhere.stack_trace), change)
    for scope in filter(vendor_scopes.begins, graph_module.graph.nodes):
        what, change = "a scope of torch_npu's has no counterpart", "use npugx_cache.backend.scope"
        return location.reason(what, location.of_text(scope.stack_trace), change)
    return None


def _is_about_streams(node: torch.fx.Node) -> bool:
    """Whether a node is about streams or scopes, which no rule covers in an inner graph."""
    if (node.meta.get("custom") or {}).get("stream"):
        return True
    if node.op != "call_function":
        return False
    named = str(node.target).startswith(("streams.", "npugraph_ex.", f"{operators.NAMESPACE}."))
    return named or streams.is_known(node.target) or vendor_scopes.begins(node)


def left_as_found(graph_module: torch.fx.GraphModule) -> Callable[..., Any]:
    """A callable that runs the graph, and restores streams and scopes if a call in it raises.

    Only Dynamo's own graph needs this, because a restored program does the same by itself.
    """
    if not any(streams.sets_stream(n) or _is_ours(n) for n in graph_module.graph.nodes):
        return graph_module

    def run(*inputs: Any) -> Any:
        with streams.current_kept(), operators.scopes_closed():
            return graph_module(*inputs)

    return run


def _is_ours(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and str(node.target).startswith(f"{operators.NAMESPACE}.")
