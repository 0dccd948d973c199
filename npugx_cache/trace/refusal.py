"""Records what a refusal depends on, so that another process does not trace in vain.

A refused call runs eagerly, and that is right under any conditions. So these conditions only decide
when tracing is worth another try, and a condition without a portable form is simply left out. Sizes
of tensors are left out too, because few traces fail for a size and each failed trace is expensive.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from npugx_cache.conditions import Check, Kind
from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.data import CALL
from npugx_cache.conditions.kinds import seal_conditions
from npugx_cache.portable import NotPortable, module_of, texts_in
from npugx_cache.trace import tracing
from npugx_cache.trace.conditions.builder import Roots, TreeBuilder
from npugx_cache.trace.conditions.guards import STATE_KINDS, add_guards, in_order
from npugx_cache.trace.conditions.observed import add_observed
from npugx_cache.trace.conditions.source_facts import Owners, SourceNotFound, facts_of
from npugx_cache.trace.conditions.surroundings import answers_to, environment_of
from npugx_cache.trace.refuse import NotEager

if TYPE_CHECKING:
    import types
    from collections.abc import Collection, Mapping

    from npugx_cache.conditions import Conditions
    from npugx_cache.conditions.evaluate import Scope

_ABOUT_TENSORS = STATE_KINDS | {"TENSOR_MATCH", "DUPLICATE_INPUT"}


def conditions_of(
    met: tracing.Met | None,
    function: types.FunctionType,
    scope: Scope,
    state: Mapping[str, Any],
    names_before: frozenset[str],
) -> Conditions | None:
    """The portable part of what a trace had met when it was given up, or None.

    `names_before` as `Roots` takes them.
    """
    if met is None:
        return None
    roots = Roots(function.__globals__, names_before)
    builder = TreeBuilder(scope, lambda name: roots.of(name, met.imports))
    for guard in in_order(builder, met.guards):
        kind, source, _ = tracing.guard_row(guard)
        if kind not in _ABOUT_TENSORS and not _is_of_a_walked_table(source):
            with contextlib.suppress(NotPortable, NotEager):
                add_guards(builder, [guard])
    with contextlib.suppress(NotPortable):
        add_observed(builder, environment_of(met.codes), Owners(()))
        add_observed(builder, answers_to(builder, met.codes, ()), Owners(()))
    tree = builder.build(state, None)
    if Checker(tree).failures(scope, limit=1):
        return None  # the trace has changed what it looked at
    tree = seal_conditions(tree, texts_in(met.codes))
    return tree.plus(_facts(met.codes, function))


def _is_of_a_walked_table(source: Any) -> bool:
    """Whether a source leads through the n-th key of a dict that is no argument of the call.

    Libraries keep tables of what they have met so far: the trace itself, or the eager run after it,
    fills them, and the next process begins without.
    """
    by_position, positions = False, tracing.sources.ConstDictKeySource
    while hasattr(source, "base"):
        by_position |= isinstance(source, positions)
        by_position |= isinstance(getattr(source, "index", None), positions)
        source = source.base
    return by_position and not isinstance(source, tracing.sources.LocalSource)


def _facts(codes: Collection[types.CodeType], function: types.FunctionType) -> list[Check]:
    owners = Owners(codes)
    found: set[Check] = set()
    for code in codes:
        try:
            found.update(facts_of([code], function.__code__, owners))
        except SourceNotFound:  # a process that reads the code from a file can find it
            absent = module_of(function), code.co_qualname, ""
            found.add(Check(CALL, Kind.FILE, absent))
        except NotPortable:
            pass
    return sorted(found)
