"""One call that needs an answer, and the manifests that are published about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npugx_cache import environment, store
from npugx_cache.artifact import CONDITIONS
from npugx_cache.signature import kinds_of_arguments, read_arguments

if TYPE_CHECKING:
    from npugx_cache.compile import Compiled
    from npugx_cache.config import Settings
    from npugx_cache.fingerprint import Fingerprint
    from npugx_cache.guards.sources import Scope
    from npugx_cache.recipe import Recipe
    from npugx_cache.signature import Signature
    from npugx_cache.trace.unstorable import LocalOnly, Untraceable


@dataclass(frozen=True, slots=True)
class Call:
    """One call that needs an answer. `args` include the object that a method is bound to.

    `tried` are the entries whose conditions don't hold for this call. `outdated` are those of them
    that were made from other code than the code that is loaded now.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    scope: Scope
    signature: Signature
    fingerprint: Fingerprint
    call_state: tuple[object, ...]
    tried: set[str] = field(default_factory=set)
    outdated: set[str] = field(default_factory=set)


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
    guards = outcome.artifact.conditions.guards
    return store.Draft(
        key=call.fingerprint.key,
        identity=recipe.identity,
        kind="graph",
        cost_seconds=outcome.seconds,
        factors=call.fingerprint.factors,
        about=_about(recipe, call, read_arguments(call.scope.frame_locals, guards)),
        blobs=blobs,
    )


def bypass_draft(recipe: Recipe, call: Call, outcome: LocalOnly | Untraceable) -> store.Draft:
    """A note that such calls can't be cached, so that other processes don't compile in vain."""
    arguments = kinds_of_arguments(call.scope.frame_locals)
    conditions = outcome.conditions
    return store.Draft(
        key=call.fingerprint.key,
        identity=recipe.identity,
        kind="bypass",
        cost_seconds=0.0,
        factors=call.fingerprint.factors,
        about={
            **_about(recipe, call, arguments),
            "reason": outcome.reason,
            "calls": call.signature.types,
        },
        blobs={} if conditions is None else {CONDITIONS: conditions.pack()},
    )


def refuses(manifest: store.Manifest, call: Call) -> bool:
    """Whether a bypass was noted for calls with arguments of these types, on any conditions."""
    return manifest.about.get("calls") == call.signature.types


def open_for(recipe: Recipe, settings: Settings) -> store.Store | store.Unusable:
    """The store that a function's entries may come from."""
    if recipe.backend == "inductor" and settings.trust == "group":
        return store.Unusable(
            "the backend 'inductor' stores machine code, which is loaded under the trust modes "
            "private and signed only, not under group"
        )
    return store.open_store(settings)
