"""Remembers the sizes that earlier processes met, so that a restarted worker goes on with them.

With `dynamic=None` torch makes a size symbolic when it meets a second value. A restarted worker has
met no value yet, so each further size would give one more static entry. Therefore an entry keeps
what Dynamo knew of sizes before and after its trace. If entries refuse a call only because of
sizes, the new trace begins with what those entries keep. A wrong choice of symbolic sizes costs
time only, because guards decide whether a graph may run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npugx_cache import store
from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.data import CALL, Check, Conditions, Kind
from npugx_cache.conditions.evaluate import Unreachable, evaluate, plan
from npugx_cache.entry.artifact import CONDITIONS, SIZES, conditions_of, sizes_of
from npugx_cache.errors import CorruptEntry
from npugx_cache.portable import NotPortable

if TYPE_CHECKING:
    from npugx_cache.conditions.evaluate import Scope

_MAX_ENTRIES = 32


class Known(NamedTuple):
    """The rows of `trace.observe.size_memory` that a trace begins with.

    `alone`: the trace first forgets what this process knows of sizes.
    """

    rows: list[Any]
    alone: bool = False


def known_sizes(opened: store.Store | None, key: str, scope: Scope) -> Known:
    """What is known of sizes in all entries that refuse a call only because of its sizes.

    Before a model is set up no graph fits, whatever the sizes are, but what to set up may.
    """
    rows: list[Any] = []
    if opened is not None:
        found = opened.candidates(key)
        for manifest in (*found.manifests[:_MAX_ENTRIES], *found.set_ups[:_MAX_ENTRIES]):
            rows += _after(opened, manifest, scope)
    return Known(rows)


def before(opened: store.Store | None, key: str, entry: str | None) -> Known:
    """What was known of sizes before an entry was traced: tracing again gives the same sizes."""
    for manifest in opened.candidates(key).manifests if opened is not None else ():
        if manifest.entry == entry and opened is not None:
            blobs = opened.read(manifest, [SIZES] if _has_sizes(manifest) else [])
            if not isinstance(blobs, store.Miss) and SIZES in blobs:
                return Known(sizes_of(blobs)[0], alone=True)
    return Known([], alone=True)


def _has_sizes(manifest: store.Manifest) -> bool:
    return any(ref.name == SIZES for ref in manifest.blobs)


def _after(opened: store.Store | None, manifest: store.Manifest, scope: Scope) -> list[Any]:
    if opened is None or not _has_sizes(manifest):
        return []
    blobs = opened.read(manifest, [CONDITIONS, SIZES])
    if isinstance(blobs, store.Miss):
        return []
    try:
        checker = Checker(conditions_of(blobs))
        return sizes_of(blobs)[1] if only_sizes_differ(checker, scope) else []
    except (CorruptEntry, NotPortable):  # `lookup` has already reported the entry
        return []
    except Exception:  # noqa: BLE001 - on a value of another kind, a check may raise anything
        return []


def only_sizes_differ(checker: Checker, scope: Scope) -> bool:
    """Whether a call fits in everything but the sizes of tensors and the values of ints.

    Asks only guards on single values, on objects that must be the same, and on torch's global
    state. The shape of a parameter does not count as a size, because another shape means another
    model.
    """
    tree = checker.conditions
    try:
        values = evaluate(plan(tree), scope)
    except Unreachable:
        return False

    def fits(check: Check) -> bool:
        value = values if check.node == CALL else values[check.node]
        return checker.holds_of(check, value) or _is_size(tree, check, value)

    decisive = (c for c in tree.all_checks() if c.kind <= Kind.SAME or c.kind is Kind.STATE)
    return all(map(fits, decisive))


def _is_size(tree: Conditions, check: Check, value: object) -> bool:
    if check.kind is Kind.EQUALS:
        return type(value) is int and type(check.arg) is int
    if check.kind is not Kind.TENSOR or type(value) is not torch.Tensor:
        return False
    fact = tree.tensors[check.arg]
    return (
        str(value.dtype) == f"torch.{fact.dtype}"
        and str(value.device) == fact.device
        and value.requires_grad == fact.requires_grad
        and value.dim() == len(fact.size)
    )
