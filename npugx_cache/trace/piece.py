"""Lowers a graph that somebody else traced, and makes the conditions under which it may run.

The key of a piece has all that the graph itself says. The conditions have what decides about a
lowering and stands in no graph: the code of fake implementations, schemas of operators, global
torch state, and what lowering and passes ask of symbolic sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import fx

from npugx_cache import location
from npugx_cache.backend import inner_tensors, subgraphs
from npugx_cache.backend.lowering import lower
from npugx_cache.conditions import Kind, Step
from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.data import CALL
from npugx_cache.conditions.evaluate import Scope
from npugx_cache.conditions.kinds import live_state
from npugx_cache.conditions.source_facts import class_facts_of, tensor_method_facts
from npugx_cache.portable import NotPortable
from npugx_cache.private import runtime
from npugx_cache.trace import lowered, refuse, tensor_patches, tracing
from npugx_cache.trace.conditions import wrapper_subclasses
from npugx_cache.trace.conditions.builder import TreeBuilder
from npugx_cache.trace.conditions.observed import add_observed
from npugx_cache.trace.conditions.operators import OperatorRun
from npugx_cache.trace.conditions.source_facts import Owners, facts_of
from npugx_cache.trace.conditions.surroundings import answers_to, environment_of, threads_for
from npugx_cache.trace.conditions.wrapper_subclasses import CodeRun
from npugx_cache.trace.device import accelerator_of_piece, stored_form
from npugx_cache.trace.lowered import PortableGraph
from npugx_cache.trace.observe import lstm
from npugx_cache.trace.streams import lost_order

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from npugx_cache.backend.engines import PassReport
    from npugx_cache.backend.inner_tensors import Parts
    from npugx_cache.conditions import Check
    from npugx_cache.key.symbols import Symbols


def portable(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    wrappers: Mapping[str, Any],
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

    `wrappers` is as `pieces.piece.Piece.tensors_by_name`. `described` has a name for each input,
    and words for what the input is; `methods` are those of tensors that the graph calls. `optimise`
    changes the lowered graph in place.
    """
    ran, called = CodeRun(inputs), OperatorRun()
    graph = _lower_graph(graph_module, inputs, decompositions, ran, called)
    rules = dict.fromkeys(called.facts(graph))
    passes = optimise(graph)
    rules |= dict.fromkeys(called.facts(graph))  # passes may put other operators in
    codes = [*called.codes, *ran.codes]
    owners = Owners(codes)
    scope = Scope({**symbols.values(), **wrappers}, {})
    builder = TreeBuilder(scope, _no_global)
    for name in symbols.names:  # the first nodes: the conditions on sizes name their places
        builder.step(CALL, Step.LOCAL, name)
    for condition in symbols.conditions():
        builder.check(CALL, Kind.SHAPE, condition)
    read = _of_wrappers(builder, wrappers, ran)
    asked = [*environment_of(ran.codes), *ran.observations(), *called.observations()]
    asked += answers_to(builder, codes, lstm.questions(graph_module))
    observed = add_observed(builder, asked, owners)
    conditions = builder.build(live_state(), threads_for(codes, graph)).plus(
        (
            *facts_of([*called.unreached, *ran.unreached], portable.__code__, owners),
            *rules,
            *tensor_method_facts(sorted(methods)),
            *class_facts_of((), (), [torch.Tensor]),
            *observed,
            *read,
        )
    )
    untraced = [*codes, *shaping]
    parts = graph.meta[tracing.PARTS]
    device = accelerator_of_piece(graph_module, graph, conditions, untraced, owners)
    conditions = stored_form(conditions, device)
    if failed := Checker(conditions).failures(scope, limit=1):
        raise NotPortable(f"the conditions refuse what they were made from: {failed[0]}")
    return PortableGraph(
        graph=graph,
        passes=passes,
        inputs=tuple(_taken_apart(described, parts)),
        static=inner_tensors.positions(static, parts),
        conditions=conditions,
        frame=None,
        parts=parts if any(parts) else (),
    )


def _lower_graph(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    decompositions: Mapping[Any, Any],
    ran: CodeRun,
    called: OperatorRun,
) -> fx.GraphModule:
    if reason := lost_order(graph_module):
        raise NotPortable(reason)
    if reason := tensor_patches.patch_reason():
        raise NotPortable(reason)
    lstm.mend_states()
    try:
        graph = lower(graph_module, inputs, decompositions, ran.note, called.note)
        ran.refuse_other_attributes(graph.meta.pop(tracing.HELD))
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
    return graph


def _of_wrappers(
    builder: TreeBuilder, wrappers: Mapping[str, Any], ran: CodeRun
) -> tuple[Check, ...]:
    """Conditions for the inputs that hold other tensors, and what their code may have read.

    Adds the checks to the tree, and gives the source facts. Raises `NotPortable`.
    """
    if not wrappers:
        return ()
    nodes = [builder.step(CALL, Step.LOCAL, name) for name in wrappers]
    for node in nodes:
        if runtime.is_wrapper(value := builder.value(node)):
            builder.check_type(node)
            wrapper_subclasses.add_attributes(builder, node)
            inner = inner_tensors.held_by(value)
            nodes += [builder.step(node, Step.ATTR, name) for name, _ in inner]
    builder.tell_apart(nodes)
    ran.add_attributes_of_others(builder, nodes, portable.__code__)
    return ran.facts(builder, portable.__code__)


def _no_global(name: str) -> NoReturn:
    raise NotPortable(f"a piece has no globals, such as {name}")


def _taken_apart(
    described: Sequence[tuple[str, str]], parts: Sequence[Parts]
) -> Iterator[tuple[str, str]]:
    for (name, text), paths in zip(described, parts, strict=True):
        if not paths:
            yield name, text
        for path in paths:
            yield f"{name}_{path.replace('.', '_')}", f"{path} of {text}"


_OF_ONE_CALLER = ("nn_module_stack", "source_fn_stack", "from_node")
"""What the nodes of a lowered graph would say of the code that was traced. It is in no key, because
equal graphs of different code share an entry; so passes must not see it."""
