"""`torch.compile(model, backend="npugx")`: each graph of Dynamo comes from the cache, if it can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.backend import inference_only
from npugx_cache.errors import BackendUnavailable
from npugx_cache.pieces.cached_graph import CachedGraph
from npugx_cache.pieces.compiled import cached_graph
from npugx_cache.private import aot_compile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx


def backend(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any
) -> Callable[..., Any]:
    """The backend `npugx` of `torch.compile`, for inference."""
    return _make_cached_graph(graph_module, example_inputs, "npugraph_ex", kwargs)


def inductor_backend(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any
) -> Callable[..., Any]:
    """The backend `npugx_inductor` of `torch.compile`: Inductor's machine code, from the cache."""
    return _make_cached_graph(graph_module, example_inputs, "inductor", kwargs)


def _make_cached_graph(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    engine: str,
    kwargs: dict[str, Any],
) -> Callable[..., Any]:
    unknown = sorted(set(kwargs) - {"options", "mode"})
    if unknown or kwargs.get("mode") is not None:
        raise BackendUnavailable(f"the npugx backend takes options, not {unknown or ['mode']}")
    aot_compile.register(CachedGraph)
    gradients = inference_only.needing_grad(graph_module)
    inference_only.call_without_grad(graph_module)
    cached = cached_graph(
        graph_module, example_inputs, backend=engine, options=kwargs.get("options")
    )
    return cached.for_inference(gradients)
