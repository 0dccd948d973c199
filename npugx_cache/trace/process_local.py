"""Runs a call that was traced and can't be stored, in this process only.

It runs Dynamo's own frame and graph under torch's own guards. Those guards don't see when somebody
edits a class or adds to a class, so this module watches the classes by identity. A class needs no
name by which another process could find it.

Only what is known to be right here runs so: the refusal says that nothing but a form for other
processes is missing (`portable.OnlyHere`), or that no library can be made on this machine, and each
question that the trace asked is one that something here asks again. All else runs eagerly.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from npugx_cache.backend import subgraphs
from npugx_cache.backend.engines import NotCompiled
from npugx_cache.conditions.code_watch import Watch
from npugx_cache.conditions.kinds import KINDS
from npugx_cache.conditions.process import ANSWERS
from npugx_cache.portable import NotPortable, OnlyHere
from npugx_cache.private import runtime
from npugx_cache.trace import refuse, tracing
from npugx_cache.trace.conditions.observed import (
    classes_here,
    is_asked_again_here,
    pairs_here,
    rows_here,
)
from npugx_cache.trace.conditions.source_facts import Owners, facts_of
from npugx_cache.trace.conditions.surroundings import builtins_used, environment_of
from npugx_cache.trace.observe.observation import Observation, Question
from npugx_cache.trace.outcomes import LocalOnly, Untraceable
from npugx_cache.trace.streams import left_as_found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npugx_cache.conditions.evaluate import Scope
    from npugx_cache.trace.dynamo import DynamoTrace


def local_only(trace: DynamoTrace, scope: Scope, refusal: Exception) -> LocalOnly | Untraceable:
    """Run Dynamo's own frame and graph under torch's own guards, if these are known to be right.

    Both need the globals that Dynamo made for this trace, for as long as the call may run.
    """
    reason = str(refusal)
    owners = Owners(trace.code)
    observed = list(_collect_observations(trace, owners))
    is_known = isinstance(refusal, (OnlyHere, NotCompiled))
    is_known = is_known and all(map(is_asked_again_here, observed))
    if not is_known or _asks_data_for_sizes(trace):
        return Untraceable(reason=reason)
    try:
        check = tracing.guards_of(trace.output, trace.function.__code__).check
        unchanged = _watch_code(trace, observed, owners)
    except AssertionError as error:
        return Untraceable(reason=f"{reason}; and torch's guards: {refuse.of_failure(error)}")
    except NotPortable as error:
        more = "" if str(error) == reason else f"; and {error}"
        return Untraceable(reason=f"{reason}{more}")
    if not check(scope.frame_locals):
        return Untraceable(reason=f"{reason}; and torch's own guards refuse the call")
    return LocalOnly(
        reason=reason,
        guards=lambda frame_locals: bool(check(frame_locals)),
        unchanged=unchanged,
        run=_runnable(trace),
    )


def _collect_observations(trace: DynamoTrace, owners: Owners) -> Iterator[Observation]:
    """What the trace read without a guard, as far as that is known without a tree of guards."""
    yield from trace.observed
    yield from environment_of(trace.code)
    names = {name for code in trace.code for name in code.co_names}
    yield from (Observation(Question.ANSWER, name) for name in names & ANSWERS.keys())
    yield from builtins_used(trace.code, trace.function, owners)
    yield from (Observation(Question.TENSOR_METHOD, None, name) for name in trace.methods)


def _asks_data_for_sizes(trace: DynamoTrace) -> bool:
    """Whether Dynamo's graph relies on what torch assumes about sizes that only data tell.

    The graph does not check all of that: it takes a size of 1 for another one in `squeeze`.
    """
    return any(
        runtime.depends_on_data(node.meta.get("example_value"))
        for node in subgraphs.nodes_of(trace.graph)
    )


def _runnable(trace: DynamoTrace) -> Callable[..., Any]:
    function = trace.function
    frame_globals = function.__globals__
    if trace.graph is not None and trace.graph_name is not None:
        frame_globals[trace.graph_name] = left_as_found(trace.graph)
    run = types.FunctionType(
        trace.bytecode,
        frame_globals,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    run.__kwdefaults__ = function.__kwdefaults__
    return run


def _watch_code(
    trace: DynamoTrace, observed: list[Observation], owners: Owners
) -> Callable[[], bool]:
    """Whether classes and functions are what they were; raises `NotPortable`."""
    facts = facts_of(trace.code, trace.function.__code__, owners)
    return Watch(
        ((KINDS[fact.kind].watch, fact.arg) for fact in facts),
        names=rows_here(observed),
        classes=classes_here(observed),
        pairs=pairs_here(observed),
    ).is_unchanged
