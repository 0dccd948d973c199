"""The backend: optimises, runs, captures and replays graphs. Does not use the cache.

Importing this package does not import torch; calling its functions does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx

__all__ = ["compile_fx", "dynamo_backend", "register_replacement"]


def compile_fx(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Optimise an aten graph with the engine npugraph_ex and make it callable.

    `gm` itself is not changed. With `example_inputs`, which may be real or fake tensors, the graph
    is first lowered to aten operators on fake copies of them. Without `example_inputs`, `gm` must
    be an aten graph already.
    If the only writes of the graph are copies into its inputs at the end, we take the graph for
    functionalised: the inputs that it writes to must not overlap any other input.
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


def register_replacement(
    search_fn: Callable[..., Any],
    replace_fn: Callable[..., Any],
    example_inputs: Sequence[Any],
    trace_fn: Callable[..., Any] | None = None,
    extra_check: Callable[[Any], bool] | None = None,
    search_fn_pattern: Any = None,
    scalar_workaround: Mapping[str, Any] | None = None,
    skip_duplicates: bool = False,
) -> None:
    """Replace the calls that `search_fn` makes by those of `replace_fn` in all later compiles.

    Both functions are traced with `example_inputs`, by `trace_fn` or else by torch's tracer for
    inference. `extra_check` gets torch's Match; `scalar_workaround` gives values to arguments that
    are numbers. The code of the functions and the values that they capture become part of the key
    of each graph. Raises OptionError if such a value can't be written down for another process.
    """
    from npugx_cache.backend import patterns

    patterns.register(
        patterns.Pattern(
            search_fn=search_fn,
            replace_fn=replace_fn,
            example_inputs=example_inputs,
            trace_fn=trace_fn,
            extra_check=extra_check,
            search_fn_pattern=search_fn_pattern,
            scalar_workaround=scalar_workaround,
            skip_duplicates=skip_duplicates,
        )
    )
