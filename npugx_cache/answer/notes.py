"""What the store keeps about a call: a graph, a refusal, a set-up, a limit that was reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache import store
from npugx_cache.entry import restore
from npugx_cache.entry.artifact import CONDITIONS, set_up_blobs, set_up_of
from npugx_cache.errors import CorruptEntry
from npugx_cache.key import environment
from npugx_cache.key.signature import Signature, kinds_of_arguments, read_arguments
from npugx_cache.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npugx_cache.compile import Compiled
    from npugx_cache.conditions import Conditions
    from npugx_cache.conditions.check import Checker
    from npugx_cache.conditions.evaluate import Scope
    from npugx_cache.conditions.set_up import SetUp
    from npugx_cache.key.fingerprint import Fingerprint
    from npugx_cache.key.recipe import Recipe
    from npugx_cache.trace.outcomes import SetUpFirst

OF_GRAPHS = OF_RUN, OF_RESULT = "failed_run", "differs"
"""Kinds of refusals that are about one graph, and say nothing about other sizes."""
_ANY_CALL = "any"  # in a note about a function: no types of arguments read like this


@dataclass(frozen=True, slots=True)
class Call:
    """One call that needs an answer. `args` include the object that a method is bound to.

    `tried` are the entries whose conditions don't hold for this call. `outdated` are those of them
    that were made from other code than the code that is loaded now, and `of_other_ranks` those that
    don't hold for one reason alone: this process has another rank.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    scope: Scope
    signature: Signature
    fingerprint: Fingerprint
    tried: set[str] = field(default_factory=set)
    outdated: set[str] = field(default_factory=set)
    of_other_ranks: set[str] = field(default_factory=set)


def _about(recipe: Recipe, call: Call, arguments: str) -> dict[str, Any]:
    return {
        "function": recipe.title,
        "backend": recipe.backend,
        "signature": arguments,
        "signature_id": call.signature.exact,
        "environment": environment.summary(),
    }


def graph_draft(
    recipe: Recipe, call: Call, outcome: Compiled, blobs: dict[str, bytes]
) -> store.Draft:
    arguments = read_arguments(call.scope.frame_locals, outcome.artifact.conditions)
    return store.Draft(
        key=call.fingerprint.key,
        identity=recipe.identity,
        kind="graph",
        cost_seconds=outcome.seconds,
        factors=call.fingerprint.factors,
        about=_about(recipe, call, arguments),
        blobs=blobs,
    )


def bypass_draft(
    recipe: Recipe,
    call: Call,
    reason: str,
    conditions: dict[str, bytes],
    *,
    of_graph: str = "",
    breaks: bool = False,
) -> store.Draft:
    """A note that such calls can't be cached, so that other processes don't compile in vain.

    `conditions` is the blob CONDITIONS, or empty if the refusal depends on nothing. `of_graph`:
    one of `OF_GRAPHS`, for a graph that is at fault for these arguments, which says nothing about
    other sizes. `breaks`: as in `Untraceable`.
    """
    arguments = kinds_of_arguments(call.scope.frame_locals)
    return store.Draft(
        key=call.fingerprint.key,
        identity=recipe.identity,
        kind="bypass",
        cost_seconds=0.0,
        factors=call.fingerprint.factors,
        about={
            **_about(recipe, call, arguments),
            "reason": reason,
            "calls": call.signature.types,
            **({of_graph: True} if of_graph else {}),
            **({"breaks": True} if breaks else {}),
        },
        blobs=conditions,
    )


def limit_draft(recipe: Recipe, call: Call, reason: str, limit: int) -> store.Draft:
    """A note that calls of a function have caused as many compiles as they may in a process."""
    draft = bypass_draft(recipe, call, reason, {})
    return draft._replace(about={**draft.about, "calls": _ANY_CALL, "limit": limit})


def limit_in(note: store.Manifest, limit: int) -> str | None:
    """What a process said that came to a limit as high as this one, or None."""
    reached, said = note.about.get("limit"), note.about.get("reason")
    if note.about.get("calls") != _ANY_CALL or not isinstance(reached, int):
        return None
    return said if reached >= limit and isinstance(said, str) else None


def conditions_in(note: store.Draft) -> Checker | None:
    """What the refusal in a note depends on, if that is known."""
    return restore.candidate(note.blobs) if CONDITIONS in note.blobs else None


def set_up_draft(
    recipe: Recipe, call: Call, outcome: SetUpFirst, conditions: Conditions, node: int
) -> store.Draft:
    """A note of what such calls do to a model first, so that other processes need no trace."""
    return store.Draft(
        key=call.fingerprint.key,
        identity=recipe.identity,
        kind="set-up",
        cost_seconds=0.0,
        factors=call.fingerprint.factors,
        about={
            **_about(recipe, call, kinds_of_arguments(call.scope.frame_locals)),
            "reason": outcome.reason,
            "calls": call.signature.types,
        },
        blobs=set_up_blobs(outcome.set_up.name, node, conditions, outcome.sizes),
    )


def set_up_due(blobs: Mapping[str, bytes], scope: Scope) -> SetUp | None:
    """The set-up that a note is about, if its conditions hold and it is not done yet.

    Raises `CorruptEntry`.
    """
    from npugx_cache.conditions import set_up

    name, node = set_up_of(blobs)
    checker = restore.candidate(blobs)
    if not 0 <= node < len(checker.conditions.parents):
        raise CorruptEntry("set_up: a place that is not in the tree")
    return set_up.due(name, checker.value(node, scope)) if checker.holds(scope) else None


def is_about(manifest: store.Manifest, call: Call) -> bool:
    """Whether a note was made for arguments of these types, whatever its conditions are."""
    return manifest.about.get("calls") == call.signature.types
