"""Detects between two calls that code was patched, without hashing code.

When an entry is bound, each source fact is checked in full. From then on we compare by identity the
names in classes and modules, the functions and the code objects that led to the fact. After a patch
the graph is not used; the next lookup checks the facts in full and says what changed.
"""

from __future__ import annotations

import sys
from operator import attrgetter, is_
from typing import TYPE_CHECKING

from npugx_cache import class_facts
from npugx_cache.class_facts import SPECIAL
from npugx_cache.covered import is_covered_module
from npugx_cache.guards.names import ABSENT, looked_up
from npugx_cache.guards.seal import SealedNames
from npugx_cache.portable import function_chain, look_up
from npugx_cache.source import (
    FUNCTION,
    GROUP,
    LOOKUP,
    SPECIAL_NAMES,
    SUBCLASS,
    TENSOR_METHOD,
    SourceFact,
    hold,
)

if TYPE_CHECKING:
    import types
    from collections.abc import Collection, Iterator

    from npugx_cache.guards.names import Row


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
