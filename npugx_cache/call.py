"""One call to be answered, and what is published about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npugx_cache import environment, store

if TYPE_CHECKING:
    from npugx_cache.compile import Compiled
    from npugx_cache.config import Settings
    from npugx_cache.fingerprint import Fingerprint
    from npugx_cache.guards.sources import Scope
    from npugx_cache.recipe import Recipe
    from npugx_cache.signature import Signature


@dataclass(frozen=True, slots=True)
class Call:
    """One call to be answered. `args` include the object a method is bound to."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    scope: Scope
    signature: Signature
    fingerprint: Fingerprint
    call_state: tuple[object, ...]


def _about(recipe: Recipe, call: Call) -> dict[str, Any]:
    return {
        "function": recipe.title,
        "backend": recipe.backend,
        "signature": call.signature.text,
        "signature_id": call.signature.exact,
        "environment": environment.summary(),
    }


def graph_draft(
    recipe: Recipe, call: Call, outcome: Compiled, blobs: dict[str, bytes]
) -> store.Draft:
    return store.Draft(
        key=call.fingerprint.key,
        identity=recipe.identity,
        kind="graph",
        cost_seconds=outcome.seconds,
        factors=call.fingerprint.factors,
        about=_about(recipe, call),
        blobs=blobs,
    )


def bypass_draft(recipe: Recipe, call: Call, reason: str) -> store.Draft:
    return store.Draft(
        key=call.fingerprint.key,
        identity=recipe.identity,
        kind="bypass",
        cost_seconds=0.0,
        factors=call.fingerprint.factors,
        about={**_about(recipe, call), "reason": reason},
        blobs={},
    )


def open_for(recipe: Recipe, settings: Settings) -> store.Store | store.Unusable:
    """The store that a function's entries may come from."""
    if recipe.backend == "inductor" and settings.trust == "group":
        return store.Unusable(
            "the backend 'inductor' stores machine code, which is loaded under the trust modes "
            "private and signed only, not under group"
        )
    return store.open_store(settings)
