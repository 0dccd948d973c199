"""Puts functions of ours in the place of Dynamo's, for the time of a trace of ours.

What Dynamo reads without a guard is seen by such functions; `hook_table` lists them, and
`replacements` says how they are put in place.

A hook whose target is missing watches nothing. So it is not put in place, and the traces in which
it would have been needed are refused. A hook with which less is refused is put in place only where
its target does what somebody has read that it does (`Hook.bodies`).
"""

from __future__ import annotations

import enum
import functools
import importlib
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npugx_cache import version
from npugx_cache.trace.observe.body_hash import body_hash
from npugx_cache.trace.observe.replacements import (
    ABSENT,
    DYNAMO,
    Replacements,
    dynamo_modules,
    own_names,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_BASE = "variables.base"


EVERY_TRACE = "every trace"
"""In `Hook.needed`: nothing can be traced without the hook."""


@dataclass(frozen=True, slots=True)
class Hook:
    """One row of the table.

    `target`: "MODULE:NAME", "MODULE:CLASS.NAME" or "MODULE:CLASS.DICT[BUILTIN]", below
    `torch._dynamo`. `make` gives what stands for the original.
    `watches` says in words what Dynamo reads there, for the reason of a refusal.

    `needed`: what to refuse where the hook is missing: the traces that make an object of a class of
    Dynamo's, in whatever module it is now, or `EVERY_TRACE`. By default the class is the target's
    own; every trace at all is refused if there is no such class.

    `bodies`: the hashes (`body_hash`) of what the target may be. With such a hook less is refused,
    or guarded, than without it, so it is not put in place at any other body, and never needed.

    `adds`: the target need not have the name. `inherits`: its class may inherit it. `everywhere`:
    other modules of Dynamo's took the function by name. `since`: in which torch the target came to
    be; `before`: in which torch it is not needed any more.
    """

    target: str
    make: Callable[[Any], Any]
    watches: str
    needed: str = ""
    bodies: tuple[str, ...] = ()
    adds: bool = False
    inherits: bool = False
    everywhere: bool = False
    since: tuple[int, int] = (0, 0)
    before: tuple[int, int] = (99, 0)


class State(enum.Enum):
    """What a target is in the torch that is installed."""

    THERE = "there"
    GONE = "gone"
    INHERITED = "inherited"
    OTHER = "other"


class Found(NamedTuple):
    """A target of a hook in the torch that is installed."""

    hook: Hook
    target: str
    state: State

    @property
    def is_used(self) -> bool:
        return self.state is State.THERE

    @property
    def reason(self) -> str:
        has = "has no" if self.state is State.GONE else "has another"
        what = f"torch {torch.__version__} {has} {self.target}"
        return f"{what}, which npugx_cache watches for {self.hook.watches}"


class Hooks(Replacements):
    """Hooks that are put in place together. Ask `obstacle` before.

    `refuse` is called with the reason in the middle of a trace that needs a hook that is missing.
    """

    def __init__(self, rows: Iterable[Hook], refuse: Callable[[str], None]) -> None:
        super().__init__()
        self._rows = tuple(rows)
        self._refuse = refuse
        self._found: tuple[Found, ...] | None = None

    def find_targets(self) -> tuple[Found, ...]:
        """The targets of this torch, looked for once."""
        with self._lock:
            return self._resolve_rows()

    def obstacle(self) -> str | None:
        """Why no trace at all can be watched with this torch, or None."""
        return next((f.reason for f in self.find_targets() if _refuses(f) == EVERY_TRACE), None)

    def missing(self) -> str | None:
        """The first hook that is missing, whatever it is needed for, as a reason; or None."""
        return next((f.reason for f in self.find_targets() if not f.is_used), None)

    def _resolve_rows(self) -> tuple[Found, ...]:
        if self._found is None:
            self._found = tuple(f for row in self._rows if (f := find(row)))
        return self._found

    def _put_all(self) -> None:
        refused: dict[str, str] = {}
        for found in self._resolve_rows():
            if found.is_used:
                for owner, name in _places(found.hook, found.target):
                    self._put(owner, name, found.hook.make, adds=found.hook.adds)
            elif kind := _refuses(found):
                refused.setdefault(kind, found.reason)
        if refused:
            meta = _all_kinds()[1]
            self._put(meta, "__call__", _refusing(refused, self._refuse), adds=True)


# --- what a target is in this torch

_TARGET = re.compile(r"([\w.]+):(?:([\w.]+)\.)?(\w+)(?:\[(\w+)\])?")


def find(hook: Hook) -> Found | None:
    """What a row is about in this torch; None for a row that is about other versions of torch."""
    if not version.is_between(torch.__version__, hook.since, hook.before):
        return None
    names = hook.target.split(" | ")
    target = next((name for name in names if value_of(name) is not ABSENT), names[-1])
    return Found(hook, target, _state(hook, target))


def _state(hook: Hook, target: str) -> State:
    value = value_of(target)
    if value is ABSENT:
        return State.THERE if hook.adds and _places(hook, target) else State.GONE
    if hook.bodies:
        return State.THERE if body_hash(value) in hook.bodies else State.OTHER
    owned = hook.inherits or any(name in own_names(owner) for owner, name in _places_of(target))
    return State.THERE if owned else State.INHERITED


def value_of(target: str) -> Any:
    """The function, class or dict that a target names."""
    for owner, name in _places_of(target):
        if type(owner) is dict:
            return owner.get(name, ABSENT)
        return getattr(owner, name, ABSENT)
    return ABSENT


def _places(hook: Hook, target: str) -> list[tuple[Any, Any]]:
    """Owners and names that the hook is put at."""
    places = _places_of(target)
    if not hook.everywhere or not places:
        return places
    [(owner, name)] = places
    value = vars(owner)[name]
    return [(each, name) for each in dynamo_modules() if vars(each).get(name) is value]


@functools.cache
def _places_of(target: str) -> list[tuple[Any, Any]]:
    """The owner of a target and its name there; nothing where there is no such owner."""
    module, kind, name, item = _parts(target)
    try:
        owner: Any = importlib.import_module(f"{DYNAMO}.{module}")
    except ImportError:
        return []
    for each in kind.split(".") if kind else ():
        owner = getattr(owner, each, None)
    if owner is not None and item:
        owner, name = getattr(owner, name, None), getattr(sys.modules["builtins"], item)
    return [] if owner is None else [(owner, name)]


def _parts(target: str) -> tuple[str, str, str, str]:
    matched = _TARGET.fullmatch(target)
    assert matched is not None, target
    module, kind, name, item = matched.groups(default="")
    return module, kind, name, item


# --- what is refused where a hook is missing


def _refuses(found: Found) -> str | None:
    """Every trace, those that make an object of a class, or nothing."""
    if found.is_used or found.hook.bodies or found.hook.adds:
        return None
    if found.hook.needed == EVERY_TRACE:
        return EVERY_TRACE
    kind = found.hook.needed or _parts(found.target)[1]
    # Objects of these were made before a trace, when Dynamo was loaded.
    made_before = kind in ("BuiltinVariable", "ConstantVariable")
    is_a_kind = any(each.__name__ == kind for each in _all_kinds()[0])
    return kind if is_a_kind and not made_before else EVERY_TRACE


def _all_kinds() -> tuple[list[type], Any]:
    """The classes of values in a trace, and their metaclass."""
    base: Any = importlib.import_module(f"{DYNAMO}.{_BASE}")
    meta = getattr(base, "VariableTrackerMeta", None)
    return list(getattr(meta, "all_subclasses", ())), meta


def _refusing(refused: Mapping[str, str], refuse: Callable[[str], None]) -> Callable[[Any], Any]:
    """See every object that Dynamo makes for a value in a trace."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        # Two sets of hooks may be in place at once, and each refuses its own kinds.
        def make_value(cls: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(cls, *args, **kwargs)
            names = [base.__name__ for base in type(made).__mro__]
            for name in names:
                if name in refused:
                    refuse(refused[name])
            return made

        return make_value

    return make
