"""Makes Dynamo look into Python functions that it would record as one call.

Such functions are marked `allow_in_graph` or `nonstrict_trace`; what they read would have no guard.
In traces of ours the marks do not count: the function is traced like any other, or the trace fails
with Dynamo's reason. What still comes into a graph as one call is found there, and refused.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import trace_rules
from torch._dynamo.source import AttrSource
from torch._dynamo.variables import VariableTracker

from npugx_cache.backend import subgraphs
from npugx_cache.conditions import einx_code
from npugx_cache.portable import module_of
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.private import vendor_scopes
from npugx_cache.trace.observe import observation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npugx_cache.trace.observe.observation import Recorder


def is_opaque(marked: Any) -> bool:
    """Whether a mark of a function, class or object counts: not if a user made what is marked."""
    if any(is_marked(marked) for is_marked in _MARKS):
        return True
    return not _is_users(marked) or _is_einxs(marked)


_MARKS: tuple[Any, ...] = (
    trace_rules.is_nonstrict_trace_callable,
    getattr(trace_rules, "is_leaf_function", lambda _: False),  # since torch 2.12
)


@observation.around
def looking_into_nonstrict(
    _: Recorder,
    original: Callable[..., Any],
    variable: Any,
    tx: Any,
    args: list[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Trace what `nonstrict_trace` was given; its own wrapper only calls that."""
    inside = getattr(variable.value, "__wrapped__", None)
    if inside is None or variable.source is None:
        return original(variable, tx, args, kwargs)
    function = VariableTracker.build(tx, inside, AttrSource(variable.source, "__wrapped__"))
    return function.call_function(tx, args, kwargs)


def opaque_calls(graph_module: torch.fx.GraphModule) -> Iterator[tuple[str, str | None]]:
    """Python functions of the user's that Dynamo's graph calls as a whole, and their stacks."""
    for node in subgraphs.nodes_of(graph_module):
        if node.op != "call_function":
            continue
        target = node.target
        if getattr(target, "__name__", "").startswith("flat_apply"):
            yield "a function marked nonstrict_trace", node.stack_trace
        elif getattr(target, "__name__", "") == _APPLY:
            yield "a torch.autograd.Function, marked allow_in_graph,", node.stack_trace
        elif isinstance(target, (types.FunctionType, type)) and _is_users(target):
            yield f"{target.__qualname__}, marked allow_in_graph,", node.stack_trace


_APPLY = "trampoline_autograd_apply"
"""What a graph calls for a marked `torch.autograd.Function`."""


def folded_queries(graph_module: torch.fx.GraphModule) -> Iterator[tuple[str, str | None]]:
    """Questions to streams and events that a trace answers once and for all, and their stacks."""
    for node in subgraphs.nodes_of(graph_module):
        asked = node.args[0] if node.op == "call_method" and node.args else None
        value = asked.meta.get("example_value") if isinstance(asked, torch.fx.Node) else None
        if isinstance(value, (torch.Stream, torch.Event)):
            yield f"{node.target}() of a stream or an event", node.stack_trace


def _is_einxs(marked: Any) -> bool:
    """Whether it is a function of einx that `einx_calls` does not serve: it can't be traced."""
    if not isinstance(marked, types.FunctionType) or einx_code.is_function(marked):
        return False
    return str(marked.__globals__.get("__name__", "")).partition(".")[0] == einx_code.MODULE


def _is_users(marked: Any) -> bool:
    """Whether what it does may change without another version of torch.

    The globals say where a function comes from; `functools.wraps` changes its `__module__`.
    """
    if vendor_scopes.is_marker(marked):
        return False
    if isinstance(marked, types.FunctionType):
        module = str(marked.__globals__.get("__name__", ""))
    else:
        module = module_of(marked if isinstance(marked, type) else type(marked))
    return not is_covered_module(module)
