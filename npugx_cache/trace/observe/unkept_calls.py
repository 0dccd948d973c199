"""Refuses, in the middle of a trace of ours, a call that a graph would lose (`graph_calls`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo import exc
from torch._dynamo.variables import misc
from torch.fx.node import map_arg

from npugx_cache.backend import graph_calls
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.private import streams
from npugx_cache.trace.observe import numpy_arrays, numpy_numbers, observation
from npugx_cache.trace.observe.stack_texts import StackTexts

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder


class NotKept(exc.TorchDynamoException):
    """Ends a trace. Dynamo catches other exceptions, and goes on in another way."""


def is_from_unkept_call(error: BaseException | None) -> bool:
    """Whether a trace ended because of a call that may not stand in a graph."""
    while error is not None and not isinstance(error, NotKept):
        error = error.__cause__ or error.__context__
    return error is not None


@observation.around
def checking(
    recorder: Recorder,
    create_node: Callable[..., fx.Node],
    tracer: Any,
    kind: str,
    target: Any,
    args: Any = None,
    kwargs: Any = None,
    *more: Any,
) -> fx.Node:
    target, kwargs = _as_operator(target, args, kwargs)
    what = graph_calls.refused(kind, target)
    what = what or graph_calls.refused_arguments(target, kwargs or {})
    if what is not None:
        recorder.refuse(what)
        raise NotKept(what)
    is_call = kind != "output"
    if is_call and (what := numpy_arrays.obstacle(recorder, target, args or (), kwargs or {})):
        # In pieces (`fullgraph=None`) the graph breaks here, and NumPy runs between two graphs.
        exc.unimplemented(gb_type=what, context="", explanation=what, hints=[])
    is_wait = kind == "call_function" and streams.waits_for_device(target)
    if is_wait and streams.has_wait_operator():
        target, args = streams.wait_operator(args or (), kwargs or {})
        kwargs = {}
    args, kwargs = numpy_numbers.as_floats(recorder, target, args, kwargs)
    node = create_node(tracer, kind, target, args, kwargs, *more)
    numpy_arrays.note_node(recorder, node)
    if is_call:
        node.stack_trace = recorder.state(StackTexts).of(tracer.output_graph.current_tx)
    return node


def _as_operator(target: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """What a call of `torch.Tensor` does, as a function and keywords that a graph may hold.

    Of a tensor it gives an alias, whatever the dtype. Dynamo writes that call for
    `torch.Tensor._make_subclass(torch.Tensor, x)`, by which a class of weights gives its plain
    tensor. A list becomes a tensor on the CPU. Given sizes, it makes a tensor without values.
    """
    if target is not torch.Tensor or kwargs or len(args or ()) != 1:
        return target, kwargs
    nodes: list[fx.Node] = []
    map_arg(args, nodes.append)
    has_tensors = any(isinstance(each.meta.get("example_value"), torch.Tensor) for each in nodes)
    if nodes == list(args) and has_tensors:
        return torch.ops.aten.alias.default, kwargs
    if isinstance(args[0], list) and not has_tensors:
        make = torch._refs.tensor if nodes else torch.tensor  # as Dynamo, for symbolic sizes
        return make, {"dtype": torch.get_default_dtype(), "device": "cpu"}
    return target, kwargs


def refuse_store(
    recorder: Recorder, effects: Any, item: Any, name: str, *_: Any, **__: Any
) -> None:
    """Refuse code that sets a switch of torch's, such as `torch.backends.cudnn.benchmark`.

    Dynamo sets the switch when the graph has run, which is too late for the operators in the graph.
    """
    del effects
    if isinstance(item, misc.PythonModuleVariable) and is_covered_module(item.value.__name__):
        recorder.refuse(f"{item.value.__name__}.{name} is set, which a graph does not do")
