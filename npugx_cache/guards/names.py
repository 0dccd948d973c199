"""Detects monkey-patching: compares what names in classes and modules stand for, by identity."""

from __future__ import annotations

from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

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
