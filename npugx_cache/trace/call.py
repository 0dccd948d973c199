"""Traces one call: Dynamo once, then aten operators.

Dynamo's graph is lowered with make_fx on fake tensors, under the modes AOTAutograd uses, but not
functionalised: the graph mutates its inputs and returns views of them where eager does, in eager's
order. So it needs none of AOTAutograd's runtime wrappers (copies back into mutated inputs,
regenerated output aliases, merged duplicate inputs), which are not part of a graph and could not be
stored with it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache import location
from npugx_cache.backend.engines import NotCompiled
from npugx_cache.backend.inner_tensors import positions
from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.explain import Wording
from npugx_cache.conditions.kinds import seal_conditions
from npugx_cache.portable import NotPortable, texts_in
from npugx_cache.trace import compare, dynamo, lowered, refuse, repetition, torch_logs, tracing
from npugx_cache.trace.caller_frame import portable_frame, refuse_positions
from npugx_cache.trace.conditions import operators, wrapper_subclasses
from npugx_cache.trace.conditions.builder import Roots, TreeBuilder
from npugx_cache.trace.conditions.guards import add_guards, add_shape_conditions
from npugx_cache.trace.conditions.observed import add_observed, order_to_flip
from npugx_cache.trace.conditions.operators import OperatorRun
from npugx_cache.trace.conditions.source_facts import (
    Owners,
    facts_of,
    held_by_classes,
)
from npugx_cache.trace.conditions.surroundings import (
    answers_to,
    builtins_used,
    environment_of,
    lookups_of,
    refuse_names,
    threads_for,
)
from npugx_cache.trace.conditions.wrapper_subclasses import CodeRun
from npugx_cache.trace.device import accelerator_of, stored_form
from npugx_cache.trace.dynamo_globals import DynamoGlobals
from npugx_cache.trace.lowered import PortableGraph
from npugx_cache.trace.observe import lstm
from npugx_cache.trace.observe.observation import Observation, Question
from npugx_cache.trace.outcomes import LocalOnly, SetUpFirst, Untraceable
from npugx_cache.trace.placeholders import describe_placeholders, origins_of, taken_apart
from npugx_cache.trace.process_local import local_only
from npugx_cache.trace.refusal import conditions_of
from npugx_cache.trace.set_up import set_up_first

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator, Mapping

    from npugx_cache.backend.engines import PassReport
    from npugx_cache.conditions import Check
    from npugx_cache.conditions.evaluate import Scope
    from npugx_cache.entry.size_history import Known
    from npugx_cache.trace.dynamo import DynamoTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced(PortableGraph):
    """One call as aten operators, with everything that makes it valid elsewhere."""

    unrepeatable: str | None
    """Why neither the function nor its caller frame may run once more (`repetition`)."""
    local_only: Callable[[Exception], LocalOnly | Untraceable]
    """Makes the form of this call that only this process may run, if it can't be stored."""


def trace(
    function: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    scope: Scope,
    *,
    state: Mapping[str, Any],
    dynamic: bool | None,
    known: Known,
    decompositions: dict[Any, Any] | None,
    optimise: Callable[[torch.fx.GraphModule], tuple[PassReport, ...]],
    shaping: tuple[types.CodeType, ...] = (),
) -> Traced | LocalOnly | Untraceable | SetUpFirst:
    """Trace one call. Runs nothing of it on real tensors; has no effect on the arguments.

    `scope` are the frame's locals and globals, `state` the global torch state, both as they are at
    this call. `optimise` changes the graph in place; sizes it looks at become guards. `shaping` is
    the user code behind decompositions and passes. Call it under `torch.no_grad()`, and with
    Dynamo's lock.
    """
    made = DynamoGlobals()
    with made.collect_globals():
        outcome = _trace(
            function,
            args,
            kwargs,
            scope,
            state=state,
            dynamic=dynamic,
            known=known,
            decompositions=decompositions,
            optimise=optimise,
            shaping=shaping,
        )
        if isinstance(outcome, LocalOnly):
            made.keep_for(outcome.run)
    if not isinstance(outcome, Traced):
        return outcome
    here = outcome.local_only

    def local(refusal: Exception) -> LocalOnly | Untraceable:
        with made.put_back():
            found = here(refusal)
            if isinstance(found, LocalOnly):
                made.keep_for(found.run)
        return found

    return replace(outcome, local_only=local)


def _trace(
    function: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    scope: Scope,
    *,
    state: Mapping[str, Any],
    dynamic: bool | None,
    known: Known,
    decompositions: dict[Any, Any] | None,
    optimise: Callable[[torch.fx.GraphModule], tuple[PassReport, ...]],
    shaping: tuple[types.CodeType, ...],
) -> Traced | LocalOnly | Untraceable | SetUpFirst:
    before = frozenset(function.__globals__)
    run = partial(dynamo.run, function, args, kwargs, dynamic=dynamic, known=known)
    depends_on = partial(
        conditions_of, function=function, scope=scope, state=state, names_before=before
    )
    first = _run_imported(run)
    if isinstance(first, dynamo.NotTraced) and first.stopped is not None:
        return set_up_first(first, first.stopped, function, scope, state, before)
    if isinstance(first, dynamo.NotTraced):
        conditions = depends_on(first.met) if first.lasting else None
        return Untraceable(
            reason=first.reason,
            lasting=first.lasting,
            conditions=conditions,
            raised=first.raised,
            breaks=first.breaks,
        )
    found, roots = first, Roots(function.__globals__, before)

    def local(refusal: Exception) -> LocalOnly | Untraceable:
        outcome = local_only(found, scope, refusal)
        return replace(outcome, conditions=depends_on(tracing.met_by(found.output)))

    lower = partial(_lower_trace, decompositions=decompositions)
    try:
        graph = lower(found)
        if (walk := order_to_flip(found.observed)) is not None:
            again = run(flipped=walk.argument.key)
            found, graph = compare.either(walk, found, graph, again, lower)
            roots = Roots(function.__globals__, before)
        return _portable(found, graph, scope, roots, state, optimise, shaping, local)
    except NotCompiled as error:  # says something about this machine
        return local_only(found, scope, error)
    except NotPortable as error:
        return local(error)
    except refuse.NotHere as error:
        return Untraceable(reason=str(error))
    except refuse.NotEager as error:
        reason = str(error)
    except tracing.ConstraintViolationError as error:
        reason = refuse.of_violation(error)
    return Untraceable(reason=reason, conditions=depends_on(tracing.met_by(found.output)))


def _run_imported(
    run: Callable[[], DynamoTrace | dynamo.NotTraced],
) -> DynamoTrace | dynamo.NotTraced:
    """Trace, once more if code in the trace has imported a module that was not imported before.

    Conditions record values as they are after the trace, and the import may have changed what the
    code read before. Where another trace observes something else, the first one is refused for it.
    """
    loaded = frozenset(sys.modules)
    found = run()
    if isinstance(found, dynamo.NotTraced):
        return found
    imports = {each.argument for each in found.observed if each.question is Question.IMPORT}
    if loaded.issuperset(imports):
        return found
    again = run()
    is_same = isinstance(again, dynamo.NotTraced) or {*again.observed} == {*found.observed}
    return again if is_same else found


def _portable(
    trace: DynamoTrace,
    graph: torch.fx.GraphModule | None,
    scope: Scope,
    roots: Roots,
    state: Mapping[str, Any],
    optimise: Callable[[torch.fx.GraphModule], tuple[PassReport, ...]],
    shaping: tuple[types.CodeType, ...],
    local: Callable[[Exception], LocalOnly | Untraceable],
) -> Traced:
    # Before passes, which may copy the graph.
    ran = graph.meta.pop(wrapper_subclasses.RUN) if graph is not None else CodeRun(())
    called = graph.meta.pop(operators.RUN) if graph is not None else OperatorRun()
    rules = _rules(called, graph)
    # Before the guards are collected: a pass that looks at a symbolic size adds one.
    passes = optimise(graph) if graph is not None else ()
    builder = TreeBuilder(scope, lambda name: roots.of(name, trace.imports))
    parts = graph.meta[tracing.PARTS] if graph is not None else ()
    untraced = [*called.codes, *ran.codes]
    code = [*trace.code, *untraced]
    owners = Owners(code)
    refuse_names([*trace.code, *ran.codes], trace.function.__code__, owners)
    _add_guards(builder, trace)
    origins = list(origins_of(taken_apart(trace.placeholders, parts), builder))
    nodes = (node for _, node in origins)
    ran.add_attributes_of_others(builder, nodes, trace.function.__code__)
    read = ran.facts(builder, trace.function.__code__)
    observed = add_observed(
        builder, _collect_observations(builder, trace, ran, called, owners), owners
    )
    facts = (*observed, *read, *rules)
    tree = builder.build(state, threads_for(code, graph))
    if failed := Checker(tree).failures(scope, limit=1, known=partial(texts_in, code)):
        raise NotPortable(f"the recorded guards refuse the call they were made from: {failed[0]}")
    if Observation(Question.KEY_ORDER, None, True) in trace.observed:
        refuse_positions(trace.bytecode)
    frame = portable_frame(trace.bytecode, trace.graph_name, roots, trace.imports)
    shaping = (*untraced, *shaping)
    tree = stored_form(tree, accelerator_of(trace, graph, builder, tree, frame, shaping, owners))
    held = held_by_classes(builder.guarded_classes())
    named = [*trace.code, *called.unreached, *ran.unreached]
    named_facts = facts_of(named, trace.function.__code__, owners, held)
    conditions = seal_conditions(tree, texts_in(code)).plus((*named_facts, *facts))
    return Traced(
        graph=graph,
        passes=passes,
        inputs=tuple(describe_placeholders(origins, Wording(conditions))),
        static=positions(trace.static, parts),
        conditions=conditions,
        frame=frame,
        parts=parts if any(parts) else (),
        sizes=trace.sizes,
        unrepeatable=repetition.obstacle(trace, (*called.codes, *ran.codes), owners),
        local_only=local,
    )


def _add_guards(builder: TreeBuilder, trace: DynamoTrace) -> None:
    conditions, variables = tracing.shape_conditions(trace.output)
    try:
        code, expected = trace.function.__code__, (AssertionError, NameError, SyntaxError)
        refused = refuse.failures_of_torch("torch can't make its guards", code, expected)
        with refused, torch_logs.without_failed_guards():
            _, *guards = tracing.guards_of(trace.output, code)
    except AssertionError as error:  # attributes of a tensor that holds others have no `==`
        failed = f"torch's guards: {str(error).splitlines()[0]}"
    except (NameError, SyntaxError) as error:  # torch evaluates the text of a key, as in `d[key]`
        what = f"a dict has a key whose text is no Python, such as a number of NumPy's ({error})"
        failed = f"torch can't make its guards, because {what}"
    else:
        add_guards(builder, *guards)
        add_shape_conditions(builder, conditions, variables)
        return
    raise NotPortable(
        wrapper_subclasses.reason_with_place(NotPortable(failed), trace.function.__code__)
    )


def _rules(called: OperatorRun, graph: torch.fx.GraphModule | None) -> tuple[Check, ...]:
    """Raises `NotEager`: nobody would see between two calls that what the code reads changed."""
    try:
        return called.facts(graph)
    except NotPortable as error:
        raise refuse.NotEager(str(error)) from None


def _collect_observations(
    builder: TreeBuilder, trace: DynamoTrace, ran: CodeRun, called: OperatorRun, owners: Owners
) -> Iterator[Observation]:
    """All that Dynamo read without a guard: seen by the hooks, or told by the code and the tree."""
    yield from environment_of([*trace.code, *ran.codes])
    code = [*trace.code, *ran.codes, *called.codes]
    yield from answers_to(builder, code, lstm.questions(trace.graph))
    yield from ran.observations()
    yield from called.observations()
    yield from builtins_used(trace.code, trace.function, owners)
    yield from trace.observed
    yield from (Observation(Question.TENSOR_METHOD, None, name) for name in trace.methods)
    yield Observation(Question.SPECIAL_NAMES, torch.Tensor)  # an operator may be patched
    yield from lookups_of(builder, trace.code)  # of the whole tree, so this comes last


def _lower_trace(
    trace: DynamoTrace, decompositions: dict[Any, Any] | None
) -> torch.fx.GraphModule | None:
    if trace.graph is None:
        return None
    try:
        ran, called = CodeRun(tracing.graph_inputs(trace.output)), OperatorRun()
        code, expected = trace.function.__code__, (tracing.ConstraintViolationError,)
        with refuse.failures_of_torch("torch can't lower the graph", code, expected):
            graph = tracing.lower_output(trace.output, decompositions, ran.note, called.note)
        ran.refuse_other_attributes(graph.meta.pop(tracing.HELD))
    except NotPortable as error:
        reason = wrapper_subclasses.reason_with_place(error, trace.function.__code__)
        raise NotPortable(reason) from None
    except tracing.NotKept as error:
        where = location.of_text(error.stack)
        raise refuse.NotEager(location.reason(error.what, where, error.change)) from None
    graph.meta[wrapper_subclasses.RUN], graph.meta[operators.RUN] = ran, called
    lowered.check(trace.graph, graph)
    return graph
