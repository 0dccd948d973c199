"""Remembers which calls could not be traced, and tells when another try makes sense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npugx_cache.conditions.check import Checker
    from npugx_cache.conditions.evaluate import Scope
    from npugx_cache.key.signature import Signature

_MAX_TRIES = 3
_MAX_RAISING = 256

Shape = tuple[tuple[int, int, int], ...]
"""For each module: its id, its number of attributes, and the number of items in dicts in them."""


class Failed(NamedTuple):
    """A failed trace. `breaks` as in `Untraceable`; `note` is the entry of the stored refusal."""

    reason: str
    breaks: bool = False
    note: str = ""


class _Failure(NamedTuple):
    failed: Failed
    tries: int
    conditions: Checker | None
    modules: Shape | None


class Untraced:
    """The reasons of failed traces by kind of call (`Signature.kind`).

    A failing trace takes as long as a good one, so it is not repeated for each new size. But what
    the trace failed for may change: a flag that the first call sets, a module that takes a lock and
    installs hooks at its first call (`conditions.set_up` has those that are known). So a call is
    traced again, up to three tries in all, if what the refusal depends on is not as it was, or if
    the eager run after the trace has given a module other attributes.

    A call for which the function itself raises says nothing about other calls, and neither does one
    that ends in a fault of the cache. Only calls with the same sizes, numbers and strings are not
    traced any more, after as many tries.
    """

    def __init__(self) -> None:
        self._failures: dict[str, _Failure] = {}
        self._raising: dict[tuple[str, str], tuple[int, str]] = {}
        """How often a call raised, in the function or in the cache, and the reason to tell."""

    def remember(self, kind: str, failed: Failed, conditions: Checker | None, scope: Scope) -> None:
        """Note a failed trace. Must be called before the eager run, which may change modules.

        `conditions`: what the refusal depends on, if that is known.
        """
        self.later(kind, conditions, scope)(failed)

    def later(
        self, kind: str, conditions: Checker | None, scope: Scope
    ) -> Callable[[Failed], None]:
        """As `remember`, but notes the failed trace when the result is called with it."""
        known = self._failures.get(kind)
        tries = 1 + (known.tries if known else 0)
        modules = None
        if tries < _MAX_TRIES:
            modules = _shape_of_modules(scope.frame_locals)
        else:
            conditions = None
        return lambda failed: self._failures.update(
            {kind: _Failure(failed, tries, conditions, modules)}
        )

    def note_error(self, call: Signature, reason: str) -> None:
        """Note that the function itself, or the cache, raised for a call that was not traced."""
        tries, _ = self._raising.get((call.exact, call.kind), (0, ""))
        if len(self._raising) >= _MAX_RAISING:
            self._raising.clear()
        self._raising[call.exact, call.kind] = tries + 1, reason

    def find_failure(self, call: Signature, scope: Scope) -> Failed | None:
        """Why a call is not worth tracing, or None."""
        if self._raising:
            tries, raised = self._raising.get((call.exact, call.kind), (0, ""))
            if tries >= _MAX_TRIES:
                return Failed(raised)
        known = self._failures.get(call.kind) if self._failures else None
        if known is None:
            return None
        if known.modules is not None:
            if _shape_of_modules(scope.frame_locals) != known.modules:
                return None
            # The modules are compared at the next call only, not at every call.
            self._failures[call.kind] = known = known._replace(modules=None)
        conditions = known.conditions
        if conditions is None or conditions.holds_quickly(scope) or conditions.holds(scope):
            return known.failed
        return None


def _shape_of_modules(frame_locals: Mapping[str, Any]) -> Shape:
    """The shape of all modules in the arguments; `Module.modules()` takes three times as long."""
    left = [value for value in frame_locals.values() if isinstance(value, torch.nn.Module)]
    met, shape = set[int](), []
    while left:
        module = left.pop()
        if id(module) not in met:
            met.add(id(module))
            attributes = vars(module)
            held = sum([len(each) for each in attributes.values() if isinstance(each, dict)])
            shape.append((id(module), len(attributes), held))
            children = attributes.get("_modules") or {}
            left += [child for child in children.values() if child is not None]
    return tuple(shape)
