"""Lowers a graph that somebody else traced, and makes the conditions under which it may run.

The key of a piece has all that the graph itself says. The conditions have what decides about a
lowering and stands in no graph: the code of fake implementations, schemas of operators, global
torch state, and what lowering and passes ask of symbolic sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from npugx_cache import location
from npugx_cache.backend import subgraphs
from npugx_cache.backend.lowering import lower
from npugx_cache.conditions import Check, Conditions, Kind, Step
from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.data import CALL, columns
from npugx_cache.conditions.evaluate import Scope
from npugx_cache.conditions.kinds import live_state
from npugx_cache.conditions.source_facts import class_facts_of, tensor_method_facts
from npugx_cache.portable import NotPortable
from npugx_cache.private import runtime
from npugx_cache.trace import lowered, refuse, tensor_patches, tracing
from npugx_cache.trace.conditions.source_facts import (
    facts_of,
    owners_of,
    run_for_operators,
    values_read_by,
)
from npugx_cache.trace.device import accelerator_of_piece, placed
from npugx_cache.trace.lowered import PortableGraph
from npugx_cache.trace.streams import lost_order

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from npugx_cache.backend.engines import PassReport
    from npugx_cache.key.symbols import Symbols


def portable(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    described: Sequence[tuple[str, str]],
    static: Sequence[int],
    symbols: Symbols,
    methods: Iterable[str],
    *,
    decompositions: Mapping[Any, Any],
    shaping: Iterable[types.CodeType],
    optimise: Callable[[fx.GraphModule], tuple[PassReport, ...]],
) -> PortableGraph:
    """Lower a graph on fake inputs. Raises `NotPortable` and `refuse.NotEager`.

    `described` has a name for each input, and words for what the input is; `methods` are those of
    tensors that the graph calls. `optimise` changes the lowered graph in place.
    """
    if reason := lost_order(graph_module):
        raise NotPortable(reason)
    if reason := tensor_patches.replaced():
        raise NotPortable(reason)
    try:
        graph = lower(graph_module, inputs, decompositions)
    except tracing.NotKept as error:
        where = location.of_text(error.stack)
        raise refuse.NotEager(location.reason(error.what, where, error.change)) from None
    lowered.check(graph_module, graph)
    for node in subgraphs.nodes_of(graph):
        if runtime.depends_on_data(node.meta.get("val")):
            what, change = "a size depends on data", "let cache_compile trace the function"
            raise NotPortable(location.reason(what, location.of_text(node.stack_trace), change))
    for node in subgraphs.nodes_of(graph):
        for name in _OF_ONE_CALLER:
            node.meta.pop(name, None)
    passes = optimise(graph)
    run = run_for_operators(graph.meta[tracing.CODE_RUN])
    owners = owners_of(run)
    facts = (
        *facts_of(run, portable.__code__, owners),
        *values_read_by(run, owners),
        *tensor_method_facts(sorted(methods)),
        *class_facts_of((), (), [torch.Tensor]),
    )
    conditions = Conditions(
        parents=(CALL,) * len(symbols.names),
        steps=(int(Step.LOCAL),) * len(symbols.names),
        args=symbols.names,
        checks=columns(
            [
                Check(CALL, Kind.STATE, live_state()),
                *(Check(CALL, Kind.SHAPE, each) for each in symbols.conditions()),
                *facts,
            ]
        ),
        idents=(),
        tensors=(),
    )
    untraced = [*run, *shaping]
    device = accelerator_of_piece(graph_module, graph, conditions, untraced, owners)
    conditions = placed(conditions, device)
    if failed := Checker(conditions).failures(Scope(symbols.values(), {}), limit=1):
        raise NotPortable(f"the conditions refuse the sizes that they were made from: {failed[0]}")
    return PortableGraph(
        graph=graph,
        passes=passes,
        inputs=tuple(described),
        static=tuple(static),
        conditions=conditions,
        frame=None,
    )


_OF_ONE_CALLER = ("nn_module_stack", "source_fn_stack", "from_node")
"""What the nodes of a lowered graph would say of the code that was traced. It is in no key, because
equal graphs of different code share an entry; so passes must not see it."""
