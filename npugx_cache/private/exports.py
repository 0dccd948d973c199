"""What torch.export makes of a graph: how its module takes arguments, and what checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.fx.graph import _PyTreeCodeGen

if TYPE_CHECKING:
    from torch import fx


def takes_nested(graph_module: fx.GraphModule) -> bool:
    """Whether the module takes and returns nested values, while its graph has flat ones."""
    return isinstance(graph_module.graph._codegen, _PyTreeCodeGen)


def share_signature(graph: fx.Graph, other: fx.Graph) -> None:
    """Let a graph take and return values as another one does."""
    graph.set_codegen(other._codegen)


def checks_inputs(graph_module: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node calls the guards of an exported program."""
    if node.op != "call_module":
        return False
    return type(graph_module.get_submodule(str(node.target))).__qualname__ == "GuardsFn"


def checks_before(graph_module: fx.GraphModule) -> tuple[Any, ...]:
    """The hooks that run before each call, and are given the named arguments as well."""
    named = graph_module._forward_pre_hooks_with_kwargs
    return tuple(hook for key, hook in graph_module._forward_pre_hooks.items() if key in named)
