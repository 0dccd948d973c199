"""How a graph is optimised, run, captured and replayed. Knows nothing of the cache.

Importing this package does not import torch; calling what it offers does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx

__all__ = ["compile_fx", "dynamo_backend"]


def compile_fx(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Optimise an aten graph with the engine npugraph_ex and make it callable.

    `gm` is left as it is. With `example_inputs`, which may be real or fake, the graph is first
    lowered to aten operators on fake copies of them; without, it must be an aten graph already.
    The callable takes the placeholders' values in order and returns the graph's outputs.
    Raises OptionError for a bad option.
    """
    from npugx_cache.backend.compile import compile_graph

    return compile_graph(gm, example_inputs, options)


def dynamo_backend(
    gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any
) -> Callable[..., Any]:
    """`torch.compile(backend="npugx")`: this backend without the cache, for inference only."""
    from npugx_cache.backend.compile import compile_for_dynamo

    return compile_for_dynamo(gm, example_inputs, **kwargs)
