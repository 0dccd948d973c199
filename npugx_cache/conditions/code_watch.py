"""Detects monkey-patching and other edits of code between two calls, without hashing code.

Three parts, each the fast path of the next: the version tags of class and module dicts, compared in
C++; the names in them, compared by identity; what led to the source facts, compared by identity.
"""

from __future__ import annotations

import sys
import types
from operator import attrgetter, is_, itemgetter
from typing import TYPE_CHECKING, Any

from npugx_cache.conditions import class_facts
from npugx_cache.conditions.class_facts import SPECIAL
from npugx_cache.conditions.source_facts import (
    FUNCTION,
    GROUP,
    LOOKUP,
    SPECIAL_NAMES,
    SUBCLASS,
    TENSOR_METHOD,
    SourceFact,
    hold,
)
from npugx_cache.events import logger
from npugx_cache.portable import function_chain, look_up
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.private import guard_managers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: no attribute of such a class can be set


class SealedNames:
    """What a set of names stood for when this object was made. Safe to use from several threads."""

    def __init__(self, rows: Iterable[Row]) -> None:
        kept = list(rows)
        self._names = PinnedNames(kept)
        self._owners = list({id(owner): owner for owner, _, _ in kept}.values())
        self._seal: Any = None
        self._passed = 0

    def unchanged(self) -> bool:
        if self._seal is not None and self._seal.check(_NO_LOCALS):
            return True
        if not self._names.unchanged():
            return False
        self._passed += 1
        # The 2nd, 4th, 8th, ... time: where a module counts in a global, tags never stay the same.
        if self._passed > 1 and self._passed.bit_count() == 1:
            self._renew()
        return True

    def _renew(self) -> None:
        try:
            seal = _seal(self._owners)
        except Exception as reason:  # noqa: BLE001 - the names can be compared without it
            logger.debug("names are compared one by one: %r", reason)
            return
        # Once more: another thread may have patched something before the versions were read.
        self._seal = seal if self._names.unchanged() else None


_NO_LOCALS: dict[str, Any] = {}


def _seal(owners: list[Any]) -> Any:
    """A guard that holds as long as nobody writes to the dict of one of these owners."""
    root = guard_managers.RootGuardManager()
    with guard_managers.building() as kind:
        above = root.globals_dict_manager({"owners": owners}, "roots", {"owners": owners}, kind)
        every = above.dict_getitem_manager("owners", "owners", owners, kind)
        for position, owner in enumerate(owners):
            if isinstance(owner, type) and owner.__flags__ & _IMMUTABLE:
                continue
            place = every.list_getitem_manager(position, str(position), owner, kind)
            if isinstance(owner, type):
                space = guard_managers.class_dict(owner)
                held = place.type_dict_manager(f"{position}.__dict__", space, kind)
            elif isinstance(owner, types.ModuleType):
                space = vars(owner)
                held = place.get_generic_dict_manager(f"{position}.__dict__", space, kind)
            else:
                raise TypeError(f"no version of {type(owner).__name__}.__dict__")
            held.add_dict_version_guard(space, ["npugx_cache"], None)
    return root


# Detects monkey-patching: compares what names in classes and modules stand for, by identity.


ABSENT = object()
"""Stands for the value of a name that a namespace does not have."""

Row = tuple[Any, str, object]
"""An object with a namespace (a class or a module), a name, and what is under it or `ABSENT`."""


def looked_up(cls: type, name: str) -> Iterator[Row]:
    """The rows that decide what a name means in a class: up to the class that provides it."""
    for base in cls.__mro__:
        yield base, name, vars(base).get(name, ABSENT)
        if name in vars(base):
            return


class PinnedNames:
    """What a set of names stood for when this object was made. Keeps owners and values alive."""

    def __init__(self, rows: Iterable[Row]) -> None:
        spaces: dict[int, tuple[Any, dict[str, object]]] = {}
        for owner, name, found in rows:
            spaces.setdefault(id(owner), (owner, {}))[1][name] = found
        self._present: list[tuple[Mapping[str, Any], Callable[..., Any], tuple[object, ...]]] = []
        self._absent: list[tuple[Mapping[str, Any], frozenset[str]]] = []
        for owner, names in spaces.values():
            self._add(vars(owner), names)

    def _add(self, space: Mapping[str, Any], names: dict[str, object]) -> None:
        found = {name: value for name, value in names.items() if value is not ABSENT}
        if found:
            first = next(iter(found))  # named twice: of a single name itemgetter makes no tuple
            self._present.append(
                (space, itemgetter(*found, first), (*found.values(), found[first]))
            )
        if missing := frozenset(names) - found.keys():
            self._absent.append((space, missing))

    def unchanged(self) -> bool:
        try:
            return all(
                all(map(is_, get(space), values)) for space, get, values in self._present
            ) and all(space.keys().isdisjoint(names) for space, names in self._absent)
        except KeyError:  # somebody deleted a name
            return False


# Detects between two calls that code was patched, without hashing code.
#
# When an entry is bound, each source fact is checked in full. From then on we compare by identity
# the names in classes and modules, the functions and the code objects that led to the fact. After a
# patch the graph is not used; the next lookup checks the facts in full and says what changed.


_CODE = attrgetter("__code__")


class Watch:
    """Everything that led to a set of source facts. Raises `NotPortable` if a fact is not found."""

    def __init__(self, facts: Collection[SourceFact]) -> None:
        functions: dict[int, tuple[types.FunctionType, types.CodeType]] = {}
        found_by: list[Row] = []
        for fact in facts:
            found_by += _found_by(fact)
            if fact.kind == FUNCTION:
                for function in function_chain(look_up(fact.module, fact.name)):
                    functions[id(function)] = function, function.__code__
        self._groups = tuple(fact for fact in facts if fact.kind == GROUP)
        asked = [fact for fact in facts if fact.kind == SUBCLASS]
        pairs = [class_facts.pair_of(fact.module, fact.name) for fact in asked]
        self._classes, self._others = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
        self._said = tuple(fact.hash == "True" for fact in asked)
        self._names = SealedNames(found_by)
        self._functions = tuple(function for function, _ in functions.values())
        self._codes = tuple(code for _, code in functions.values())

    def unchanged(self) -> bool:
        return (
            self._names.unchanged()
            and all(map(is_, map(_CODE, self._functions), self._codes))
            and (not self._groups or hold(self._groups))
            and all(map(is_, map(issubclass, self._classes, self._others), self._said))
        )


def _found_by(fact: SourceFact) -> Iterator[Row]:
    """The namespaces that decide what a name means, in the order they are asked."""
    if fact.kind == TENSOR_METHOD:
        yield from looked_up(sys.modules["torch"].Tensor, fact.name)
    elif fact.kind == SPECIAL_NAMES:
        for cls in getattr(look_up(fact.module, fact.name), "__mro__", ()):
            if not is_covered_module(cls.__module__):
                found = vars(cls)
                yield from ((cls, name, found.get(name, ABSENT)) for name in SPECIAL)
    elif fact.kind in (LOOKUP, FUNCTION):
        owner, _, name = fact.name.rpartition(".")
        holder = look_up(fact.module, owner) if owner else sys.modules[fact.module]
        if isinstance(holder, type):
            yield from looked_up(holder, name)
        else:
            yield holder, name, vars(holder).get(name, ABSENT)
