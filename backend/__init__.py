"""How a graph is optimised, run, captured and replayed. Knows nothing of the cache.

Importing this package does not import torch; calling what it offers does.
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

    `gm` is left as it is. With `example_inputs`, which may be real or fake, the graph is first
    lowered to aten operators on fake copies of them; without, it must be an aten graph already.
    An aten graph that writes nothing but copies into its inputs, after everything else, is taken
    for functionalised: inputs that it writes to must not overlap others.
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
    """Replace calls like `search_fn`'s by `replace_fn`'s, in every graph compiled from now on.

    Both are traced with `example_inputs`, by `trace_fn` or for inference. `extra_check` gets
    torch's Match; `scalar_workaround` gives values to arguments that are numbers. The functions are
    part of the key of each graph by their code and what they capture; OptionError for what has no
    form in another process.
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
