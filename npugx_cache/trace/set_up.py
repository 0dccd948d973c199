"""Turns a trace that ended at a set-up into what has to be done first, and under which conditions.

A restarted process finds the set-up in the store, sees that its conditions hold, does the set-up,
and looks the call up again. The conditions are all that the trace had met up to the line of the
set-up, so that the set-up is done for exactly the calls that come to this line.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.explain import Wording
from npugx_cache.conditions.kinds import seal_conditions
from npugx_cache.portable import NotPortable, texts_in
from npugx_cache.trace.conditions.builder import Roots, TreeBuilder
from npugx_cache.trace.conditions.guards import add_guards, add_shape_conditions
from npugx_cache.trace.conditions.observed import add_observed
from npugx_cache.trace.conditions.source_facts import Owners, facts_of
from npugx_cache.trace.conditions.surroundings import (
    answers_to,
    builtins_used,
    environment_of,
    lookups_of,
    refuse_names,
)
from npugx_cache.trace.observe.observation import Question, refusal
from npugx_cache.trace.outcomes import SetUpFirst
from npugx_cache.trace.refuse import NotEager

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator, Mapping
    from typing import Any

    from npugx_cache.conditions import Conditions
    from npugx_cache.conditions.evaluate import Scope
    from npugx_cache.trace.dynamo import NotTraced
    from npugx_cache.trace.observe.observation import Observation
    from npugx_cache.trace.observe.set_up_calls import Stopped


def set_up_first(
    trace: NotTraced,
    stopped: Stopped,
    function: types.FunctionType,
    scope: Scope,
    state: Mapping[str, Any],
    names_before: frozenset[str],
) -> SetUpFirst:
    """`names_before` as `Roots` takes them."""
    name, observed, stored = stopped.set_up.name, trace.observed, None
    try:
        stored = _conditions(stopped, observed, function, scope, state, names_before)
        path = Wording(stored[0]).path(stored[1])
        reason = f"{name}({path}) is called before a graph is looked up"
    except (NotPortable, NotEager) as error:
        reason = f"{name}: {error}"
    return SetUpFirst(set_up=stopped.set_up, reason=reason, stored=stored, sizes=trace.sizes)


def _conditions(
    stopped: Stopped,
    observed: tuple[Observation, ...],
    function: types.FunctionType,
    scope: Scope,
    state: Mapping[str, Any],
    names_before: frozenset[str],
) -> tuple[Conditions, int]:
    """Raises `NotPortable` and `NotEager`."""
    if reason := refusal(observed, Question.UNCHECKABLE):
        raise NotPortable(reason)
    (guards, codes, imports), shapes = stopped.met.met, stopped.met.shapes
    if shapes is None:
        raise NotPortable("a size marked with mark_dynamic can't vary freely")
    roots = Roots(function.__globals__, names_before)
    builder = TreeBuilder(scope, lambda name: roots.of(name, imports))
    owners = Owners(codes)
    refuse_names(codes, function.__code__, owners)
    add_guards(builder, guards, stopped.met.sizes, stopped.met.key_ordered)
    add_shape_conditions(builder, *shapes)
    node = builder.node(stopped.source)
    if builder.value(node) is not stopped.set_up.model:
        raise NotPortable("the model is not reached from the arguments")

    def collect_observations() -> Iterator[Observation]:
        yield from environment_of(codes)
        yield from answers_to(builder, codes, ())
        yield from builtins_used(codes, function, owners)
        yield from observed
        yield from lookups_of(builder, codes)  # of the whole tree, so this comes last

    facts = add_observed(builder, collect_observations(), owners)
    tree = builder.build(state, None)
    if failed := Checker(tree).failures(scope, limit=1, known=partial(texts_in, codes)):
        raise NotPortable(f"the recorded guards refuse the call they were made from: {failed[0]}")
    facts = (*facts_of(codes, function.__code__, owners), *facts)
    return seal_conditions(tree, texts_in(codes)).plus(facts), node
