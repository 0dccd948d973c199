"""The backend on its own: a graph to a callable, without the cache."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache._compat import lowering
from npugx_cache.backend import engines, options
from npugx_cache.backend.graph import to_program
from npugx_cache.backend.runtime import bind_program
from npugx_cache.errors import BackendUnavailable
from npugx_cache.portable import NotPortable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx


def compile_graph(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any] | None,
    user_options: Mapping[str, Any] | None,
    *,
    engine: str = "npugraph_ex",
) -> Callable[..., Any]:
    """See `npugx_cache.backend.compile_fx`."""
    checked = options.parse(user_options)
    if example_inputs is None:
        graph_module = copy.deepcopy(graph_module)
    else:
        graph_module = lowering.lower(graph_module, example_inputs, None)
    engines.load(engine).optimise(graph_module, checked)
    try:
        program, constants = to_program(graph_module)
    except NotPortable:
        return graph_module.forward  # random numbers and control flow run as fx runs them
    return bind_program(program, constants)


def compile_for_dynamo(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any
) -> Callable[..., Any]:
    """See `npugx_cache.backend.dynamo_backend`; raises BackendUnavailable where autograd is on."""
    wants_grad = any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)
    if torch.is_grad_enabled() and wants_grad:
        raise BackendUnavailable(
            "the npugx backend is for inference; call the compiled function under torch.no_grad()"
        )
    unknown = sorted(set(kwargs) - {"options", "mode"})
    if unknown or kwargs.get("mode") is not None:
        raise BackendUnavailable(f"the npugx backend takes options, not {unknown or ['mode']}")
    return compile_graph(graph_module, example_inputs, kwargs.get("options"))
