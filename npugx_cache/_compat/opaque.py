"""Python functions that Dynamo runs or records without looking inside. Checked on torch 2.13.

What they read has no guard: `allow_in_graph`, `nonstrict_trace`, `assume_constant_result`.
"""

from __future__ import annotations

import contextlib
import functools
import types
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.variables import functions, nn_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_folded: ContextVar[list[str] | None] = ContextVar("npugx_folded", default=None)


def _noting(invoke: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(invoke)
    def noted(tx: Any, function: Any, name: str, *rest: Any) -> Any:
        names = _folded.get()
        if names is not None:
            names.append(name)
        return invoke(tx, function, name, *rest)

    return noted


# Once for the process, not around each trace: other threads may be tracing.
for _module in (functions, nn_module):
    _invoke: Any = vars(_module)["invoke_and_store_as_constant"]
    vars(_module)["invoke_and_store_as_constant"] = _noting(_invoke)


@contextlib.contextmanager
def folded_calls() -> Iterator[list[str]]:
    """Names of the functions whose result became a constant of the trace made inside."""
    names: list[str] = []
    token = _folded.set(names)
    try:
        yield names
    finally:
        _folded.reset(token)


def opaque_calls(graph_module: torch.fx.GraphModule) -> Iterator[tuple[str, str | None]]:
    """Python functions of the user's that Dynamo's graph calls as a whole, and their stacks."""
    for node in graph_module.graph.nodes:
        if node.op != "call_function":
            continue
        target = node.target
        if getattr(target, "__name__", "").startswith("flat_apply"):
            yield "a function marked nonstrict_trace", node.stack_trace
        elif isinstance(target, types.FunctionType) and _is_users(target.__module__ or ""):
            yield f"{target.__qualname__}, marked allow_in_graph,", node.stack_trace


def folded_queries(graph_module: torch.fx.GraphModule) -> Iterator[tuple[str, str | None]]:
    """Questions to streams and events that a trace answers once and for all, and their stacks."""
    for node in graph_module.graph.nodes:
        asked = node.args[0] if node.op == "call_method" and node.args else None
        value = asked.meta.get("example_value") if isinstance(asked, torch.fx.Node) else None
        if isinstance(value, (torch.Stream, torch.Event)):
            yield f"{node.target}() of a stream or an event", node.stack_trace


def _is_users(module: str) -> bool:
    return module.partition(".")[0] not in ("torch", "torch_npu", "_operator", "operator")
