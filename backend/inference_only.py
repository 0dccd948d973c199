"""Runs a graph of Dynamo's without autograd where eager would record a backward graph.

A model is often called for inference without `torch.no_grad()`. Its results then need a gradient,
as eager's do, and whoever asks for that gradient is told that there is none. A result without
`requires_grad` would let a loss on top of the model train a part of the parameters, in silence.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from npugx_cache.backend import graph_calls
from npugx_cache.private.autograd import without_backward, writes_to

if TYPE_CHECKING:
    from collections.abc import Callable

_NO_BACKWARD = (
    "a gradient was asked for of a model that torch.compile(backend='npugx') compiled for "
    "inference, without a backward graph: train the model itself, or compile it with another "
    "backend, such as backend='inductor'"
)


class Gradients(NamedTuple):
    """What a call of a graph does to gradients in eager mode.

    results: positions of the results that need a gradient and are no inputs.
    written: positions of the inputs that are part of a backward graph because they are written to.
    enabled: whether gradients are computed where the graph is called.
    left: whether they are computed after the call.
    """

    results: tuple[int, ...]
    written: tuple[int, ...]
    enabled: bool
    left: bool


def needing_grad(graph_module: fx.GraphModule) -> Gradients:
    """What Dynamo's graph does to gradients, as the fake tensors say with which Dynamo traced it.

    Call this where the backend is called, in the grad mode of the user's call.
    """
    graph = graph_module.graph
    inputs = [_traced(node) for node in graph.nodes if node.op == "placeholder"]
    given = {id(value) for value in inputs if value is not None}
    returned: Any = graph.output_node().args[0]
    results = [_traced(node) for node in returned]
    enabled = torch.is_grad_enabled()
    switches = [n for n in graph.nodes if graph_calls.sets_grad_mode(n.target)]
    return Gradients(
        tuple(
            at
            for at, value in enumerate(results)
            if value is not None and value.requires_grad and id(value) not in given
        ),
        tuple(at for at, value in enumerate(inputs) if value is not None and _joins(value)),
        enabled,
        bool(switches[-1].args[0]) if switches else enabled,
    )


def _traced(node: Any) -> torch.Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _joins(value: torch.Tensor) -> bool:
    """Whether a traced input was written to, and has a backward graph."""
    return value.requires_grad and not value.is_leaf and writes_to(value) > 0


def call_without_grad(graph_module: fx.GraphModule) -> None:
    """Change Dynamo's graph to one that is called, and lowered, with gradients off.

    It switches them on and off nowhere: nothing in it needs any, and a switch back would seem to
    leave them on. A graph that computes gradients itself (`torch.func.grad`) keeps its switches,
    because they say what is a constant there, and runs as a whole with gradients on.
    """
    if not graph_calls.differentiates(graph_module):
        for module in graph_module.modules():
            if isinstance(module, fx.GraphModule):
                calls = [n for n in module.graph.nodes if graph_calls.sets_grad_mode(n.target)]
                for call in calls:
                    module.graph.erase_node(call)
                if calls:
                    module.recompile()
    elif torch.is_grad_enabled():
        graph = graph_module.graph
        first = next(node for node in graph.nodes if node.op != "placeholder")
        for node, on in ((first, True), (graph.output_node(), False)):
            with graph.inserting_before(node):
                graph.call_function(graph_calls.SET_GRAD_MODE, (on,))
        graph_module.recompile()


def for_inference(run: Callable[..., Any], gradients: Gradients) -> Callable[..., Any]:
    """Wrap the callable of a graph: it runs without autograd, and its results are as eager's.

    They have `requires_grad`, but a backward raises.
    """
    results, written, enabled, left = gradients
    if not (results or written or enabled or left):
        return run
    give = without_backward(_NO_BACKWARD, len(results))

    def forward(*inputs: Any) -> Any:
        with torch.no_grad():
            returned = run(*inputs)
        if results or written:
            returned = list(returned)
            with torch.enable_grad():
                for at in written:
                    # Eager refuses some writes where gradients are on, such as one to a view of a
                    # parameter: then the function has written under no_grad.
                    with contextlib.suppress(RuntimeError):
                        _join(inputs[at], torch.empty(0, requires_grad=True))
                if results:
                    given = give([returned[at] for at in results])
                    for at, result in zip(results, given, strict=True):
                        returned[at] = result
        if left != enabled:
            torch.set_grad_enabled(left)
        return returned

    return forward


class _Written(torch.autograd.Function):
    """Makes a tensor that was written to part of a backward graph, which raises."""

    @staticmethod
    def forward(ctx: Any, written: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(written)
        return written

    @staticmethod
    def backward(_: Any, *__: torch.Tensor) -> Any:
        raise RuntimeError(_NO_BACKWARD)


_join: Callable[..., Any] = _Written.apply
