"""A graph of aten operators that can be stored, and what must be true of a graph for that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npugx_cache import location
from npugx_cache.portable import NotPortable
from npugx_cache.trace import refuse, tracing
from npugx_cache.trace.observe import lstm

if TYPE_CHECKING:
    import torch

    from npugx_cache.backend.engines import PassReport
    from npugx_cache.backend.inner_tensors import Parts
    from npugx_cache.conditions import Conditions
    from npugx_cache.entry.frame import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class PortableGraph:
    """A graph as aten operators, with everything that makes it valid elsewhere.

    `graph` is None for a function without tensor operations; `passes` say what was done to it;
    `inputs` are a name and a description of each placeholder of `graph`, in order; `static` are the
    positions of those that are parameters, or that Dynamo takes to stay in their place. `frame` is
    None for a piece.
    """

    graph: torch.fx.GraphModule | None
    passes: tuple[PassReport, ...]
    inputs: tuple[tuple[str, str], ...]
    static: tuple[int, ...]
    conditions: Conditions
    frame: Frame | None
    parts: tuple[Parts, ...] = ()
    """As `Bindings.parts`."""
    sizes: tuple[list[Any], list[Any]] = ([], [])
    """What Dynamo knew of sizes before and after (`trace.observe.size_memory`)."""


def check(called: torch.fx.GraphModule, graph: torch.fx.GraphModule) -> None:
    """Refuse a lowered graph that would not do what eager does, or whose code nobody could watch.

    `called` is the graph before it was lowered. Raises `NotPortable` and `refuse.NotEager`.
    """
    operators = tracing.custom_operators(called)
    if inlined := operators.keys() - tracing.operators_in(graph).keys():
        what = f"the Python body of operator {min(inlined)} was traced through"
        change = "register its kernel for CompositeExplicitAutograd or for a device"
        place = location.of_text(operators[min(inlined)])
        raise NotPortable(location.reason(what, place, change))
    if graph.meta[tracing.RESHAPED] is not None:
        # Dynamo goes on with the shape from before: `x.t_(); return x.shape` would be wrong.
        target, stack = graph.meta[tracing.RESHAPED]
        named = getattr(target, "__name__", target)
        what = f"{named} changes the shape of a tensor in place"
        change = "use the operator that returns a new view"
        raise refuse.NotEager(location.reason(what, location.of_text(stack), change))
    if call := lstm.otherwise(called):
        what = "this CPU runs this LSTM otherwise than it is traced with sizes that vary"
        change = "use float32, or dynamic=False"
        raise refuse.NotHere(location.reason(what, location.of_text(call.stack_trace), change))
