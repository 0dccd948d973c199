"""Puts functions of ours in the place of Dynamo's, for the time of a trace of ours.

What Dynamo reads without a guard is seen by such functions; `hook_table` lists them, and
`replacements` says how they are put in place.

A hook whose target is missing, or is not the code that was checked for this torch, watches nothing.
So it is not put in place, and the traces in which it would have been needed are refused.
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

from npugx_cache.passing import is_passing
from npugx_cache.private import runtime
from npugx_cache.trace.observe import hook_hashes
from npugx_cache.trace.observe.replacements import ABSENT, DYNAMO, Replacements, dynamo_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from npugx_cache.trace.observe.hook_hashes import Checked

_BASE = "variables.base"


class Needed(enum.Enum):
    """What to refuse where a hook can't be put in place, if its target does not say that."""

    EVERY_TRACE = "refuse every trace"
    ONLY_ALLOWS = "refuse nothing: with the hook less is refused, or guarded, than without it"


@dataclass(frozen=True, slots=True)
class Hook:
    """One row of the table.

    `target`: "MODULE:NAME", "MODULE:CLASS.NAME" or "MODULE:CLASS.DICT[BUILTIN]", below
    `torch._dynamo`. `make` gives what stands for the original.
    `watches` says in words what Dynamo reads there, for the reason of a refusal.

    `needed`: what to refuse where the hook is missing. By default every trace that makes an object
    of the target's class, in whatever module of Dynamo's it is now; every trace at all if there is
    no such class. `adds`: the target need not have the name. `everywhere`: other modules of
    Dynamo's took the function by name. `since`: in which torch the target came to be; `before`: in
    which torch it is not needed any more.
    """

    target: str
    make: Callable[[Any], Any]
    watches: str
    needed: Needed | str = ""
    adds: bool = False
    everywhere: bool = False
    since: tuple[int, int] = (0, 0)
    before: tuple[int, int] = (99, 0)


class State(enum.Enum):
    """What a target is, beside what was checked for this torch."""

    SAME = "same"
    UNCHECKED = "unchecked"
    CHANGED = "changed"
    NEW = "new"
    GONE = "gone"


class Found(NamedTuple):
    """A target of a hook in the torch that is installed."""

    hook: Hook
    target: str
    state: State

    @property
    def is_used(self) -> bool:
        """A hook that only allows more is used where its target is known to be what it was."""
        if self.hook.needed is Needed.ONLY_ALLOWS:
            return self.state is State.SAME
        return self.state in (State.SAME, State.UNCHECKED)

    @property
    def reason(self) -> str:
        has = _HAS.get(self.state, "has another")
        what = f"torch {torch.__version__} {has} {self.target}"
        return f"{what}, which npugx_cache watches for {self.hook.watches}"


_HAS = {State.GONE: "has no", State.NEW: "has an unchecked"}


class Hooks(Replacements):
    """Hooks that are put in place together. Ask `obstacle` before.

    `refuse` is called with the reason in the middle of a trace that needs a hook that is missing.
    """

    def __init__(self, rows: Iterable[Hook], refuse: Callable[[str], None]) -> None:
        super().__init__()
        self._rows = tuple(rows)
        self._refuse = refuse
        self._found: tuple[Found, ...] | None = None

    def found(self) -> tuple[Found, ...]:
        """The targets of this torch, compared once with what was checked."""
        with self._lock:
            return self._resolved()

    def obstacle(self) -> str | None:
        """Why no trace at all can be watched with this torch, or None."""
        return next((f.reason for f in self.found() if _refuses(f) is Needed.EVERY_TRACE), None)

    def missing(self) -> str | None:
        """The first hook that is missing, whatever it is needed for, as a reason; or None."""
        return next((f.reason for f in self.found() if not f.is_used), None)

    def _resolved(self) -> tuple[Found, ...]:
        if self._found is None:
            version = runtime.torch_version()
            checked = hook_hashes.checked_for(version)
            if checked is None and version in runtime.TESTED_TORCH:
                raise RuntimeError(f"npugx_cache was installed without its table for {version}")
            self._found = tuple(f for row in self._rows if (f := compared(row, checked)))
        return self._found

    def _put_all(self) -> None:
        refused: dict[str, str] = {}
        for found in self._resolved():
            if found.is_used:
                for owner, name in _places(found.hook, found.target):
                    self._put(owner, name, found.hook.make, adds=found.hook.adds)
            elif isinstance(kind := _refuses(found), str):
                refused.setdefault(kind, found.reason)
        if refused:
            meta = _all_kinds()[1]
            self._put(meta, "__call__", _refusing(refused, self._refuse), adds=True)


# --- what a target is in this torch

_TARGET = re.compile(r"([\w.]+):(?:(\w+)\.)?(\w+)(?:\[(\w+)\])?")


def compared(hook: Hook, checked: Checked | None) -> Found | None:
    """The target of a row here, beside what it was when it was checked.

    None for a row that is about other versions of torch.
    """
    if not hook.since <= runtime.torch_version() < hook.before:
        return None
    target = _one_of(hook.target.split(" | "), checked)
    return Found(hook, target, _state(hook, target, checked))


def _one_of(names: list[str], checked: Checked | None) -> str:
    """The name that this torch has, or else had when it was checked."""
    there = (name for name in names if is_there(value_of(name)))
    known = (name for name in names if checked and name in checked.targets)
    return [*there, *known, names[-1]][0]


def _state(hook: Hook, target: str, checked: Checked | None) -> State:
    value = value_of(target)
    if value is ABSENT:
        return State.SAME if hook.adds and _places(hook, target) else State.GONE
    if checked is None:
        return State.UNCHECKED
    if target not in checked.targets:
        return State.NEW
    try:
        is_same = hook_hashes.is_same(value, overriding(target), checked.targets[target], checked)
    except (OSError, SyntaxError, TypeError, ValueError) as error:
        if is_passing(error):
            raise
        is_same = False  # its source can't be found or read
    return State.SAME if is_same else State.CHANGED


def overriding(target: str) -> list[str]:
    """Dynamo's classes that have a method of their own where the target's class has its: unseen."""
    for owner, name in _places_of(target):
        if isinstance(owner, type):
            kinds = (k for k in _all_kinds()[0] if owner in k.__mro__[1:] and name in vars(k))
            return sorted(k.__name__ for k in kinds if k.__module__.startswith(DYNAMO))
    return []


def value_of(target: str) -> Any:
    """The function, class or dict that a target names."""
    for owner, name in _places_of(target):
        if type(owner) is dict:
            return owner.get(name, ABSENT)
        return getattr(owner, name, ABSENT)
    return ABSENT


def is_there(value: object) -> bool:
    return value is not ABSENT


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
    owner = getattr(owner, kind, None) if kind else owner
    if owner is not None and item:
        owner, name = getattr(owner, name, None), getattr(sys.modules["builtins"], item)
    return [] if owner is None else [(owner, name)]


def _parts(target: str) -> tuple[str, str, str, str]:
    matched = _TARGET.fullmatch(target)
    assert matched is not None, target
    module, kind, name, item = matched.groups(default="")
    return module, kind, name, item


# --- what is refused where a hook is missing


def _refuses(found: Found) -> Needed | str | None:
    """Every trace, those that make an object of a class, or nothing."""
    if found.is_used or found.hook.needed is Needed.ONLY_ALLOWS:
        return None
    if isinstance(found.hook.needed, Needed):
        return found.hook.needed
    kind = found.hook.needed or _parts(found.target)[1]
    # Objects of these were made before a trace, when Dynamo was loaded.
    made_before = kind in ("BuiltinVariable", "ConstantVariable")
    is_a_kind = any(each.__name__ == kind for each in _all_kinds()[0])
    return kind if is_a_kind and not made_before else Needed.EVERY_TRACE


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
