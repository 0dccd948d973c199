"""Finds calls of Python functions that Dynamo records without looking inside them.

Such functions are marked `allow_in_graph` or `nonstrict_trace`; what they read has no guard.
Checked on torch 2.13.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

import torch

from npugx_cache.backend import subgraphs
from npugx_cache.portable import module_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def opaque_calls(graph_module: torch.fx.GraphModule) -> Iterator[tuple[str, str | None]]:
    """Python functions of the user's that Dynamo's graph calls as a whole, and their stacks."""
    for node in subgraphs.nodes_of(graph_module):
        if node.op != "call_function":
            continue
        target = node.target
        if getattr(target, "__name__", "").startswith("flat_apply"):
            yield "a function marked nonstrict_trace", node.stack_trace
        elif isinstance(target, types.FunctionType) and _is_users(module_of(target)):
            yield f"{target.__qualname__}, marked allow_in_graph,", node.stack_trace


def folded_queries(graph_module: torch.fx.GraphModule) -> Iterator[tuple[str, str | None]]:
    """Questions to streams and events that a trace answers once and for all, and their stacks."""
    for node in subgraphs.nodes_of(graph_module):
        asked = node.args[0] if node.op == "call_method" and node.args else None
        value = asked.meta.get("example_value") if isinstance(asked, torch.fx.Node) else None
        if isinstance(value, (torch.Stream, torch.Event)):
            yield f"{node.target}() of a stream or an event", node.stack_trace


def _is_users(module: str) -> bool:
    return module.partition(".")[0] not in ("torch", "torch_npu", "_operator", "operator")
