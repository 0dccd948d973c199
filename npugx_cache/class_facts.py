"""Source facts about classes: what Dynamo asks of them at a trace and folds without a guard."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from npugx_cache.covered import is_covered_module
from npugx_cache.fingerprint import digest
from npugx_cache.portable import NotPortable, encode, look_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def subclasses(pairs: Iterable[tuple[type, type]]) -> Iterator[tuple[str, str, str]]:
    """Module, name and answer of `issubclass` for pairs of classes: `A < other.module:B`.

    A class that no name leads to has its bases in its identity and is left out.
    """
    for cls, other in pairs:
        name = f"{cls.__qualname__} < {other.__module__}:{other.__qualname__}"
        try:
            if pair_of(cls.__module__, name) == (cls, other):
                yield cls.__module__, name, str(issubclass(cls, other))
        except NotPortable:
            continue


def pair_of(module: str, name: str) -> tuple[Any, Any]:
    """The classes that such a name is about; raises `NotPortable`."""
    qualname, _, other = name.partition(" < ")
    other_module, _, other_name = other.partition(":")
    return look_up(module, qualname), look_up(other_module, other_name)


def is_subclass(module: str, name: str) -> str:
    try:
        return str(issubclass(*pair_of(module, name)))
    except TypeError:  # what has this name now is no class
        return ""


def members(enums: Iterable[type]) -> Iterator[tuple[str, str, str]]:
    """Module, name and hash of the members of enumerations of user code."""
    for cls in enums:
        if is_covered_module(cls.__module__):
            continue
        try:
            if look_up(cls.__module__, cls.__qualname__) is cls:
                yield (
                    cls.__module__,
                    cls.__qualname__,
                    members_hash(cls.__module__, cls.__qualname__),
                )
        except NotPortable:
            continue


def members_hash(module: str, name: str) -> str:
    """Of the names and values of an enumeration's members, in their order."""
    cls: Any = look_up(module, name)
    if not isinstance(cls, enum.EnumMeta):
        return ""
    named: dict[str, Any] = dict(cls.__members__)
    return digest(f"{each}={_value_text(member)}" for each, member in named.items())


def _value_text(member: Any) -> str:
    try:
        return repr(encode(member.value))
    except NotPortable:
        return type(member.value).__qualname__
