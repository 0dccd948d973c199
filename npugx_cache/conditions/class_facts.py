"""Source facts about classes.

Dynamo asks a class for a name, a base or a member during a trace and makes the answer a constant,
without a guard. We record the answer.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from npugx_cache.portable import NotPortable, digest, encode, look_up, unwrap
from npugx_cache.portable.pinned import is_covered_module

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


def special_names(classes: Iterable[type]) -> Iterator[tuple[str, str, str]]:
    """Module, name and hash of what classes of user code define for Python's own syntax.

    A `__bool__` or an `__init__` that a class gets later changes what was traced, and nothing else
    tells. A class that no name leads to is left out.
    """
    for cls in classes:
        try:
            if look_up(cls.__module__, cls.__qualname__) is cls:
                found = special_hash(cls.__module__, cls.__qualname__)
                yield cls.__module__, cls.__qualname__, found
        except NotPortable:
            continue


def special_hash(module: str, name: str) -> str:
    """Of the classes in the MRO, and the special names that those of user code define.

    With what stands under them: one that a library makes, as `functools.total_ordering` does, may
    be replaced by the user's.
    """
    parts = []
    for cls in getattr(look_up(module, name), "__mro__", ()):
        space = vars(cls)
        names = () if is_covered_module(cls.__module__) else sorted(SPECIAL & space.keys())
        defined = (f"{each}={made_by(space[each])}" for each in names)
        parts.append(f"{cls.__module__}.{cls.__qualname__}:{' '.join(defined)}")
    return digest(parts)[:32]


def made_by(member: Any) -> str:
    """The qualified name in the source of the function that a member is or wraps, or its type."""
    code = getattr(unwrap(member), "__code__", None)
    return code.co_qualname if code is not None else type(member).__name__


_OPERATORS = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow"),
    *("lshift", "rshift", "and", "xor", "or"),
)
SPECIAL = frozenset(
    f"__{name}__"
    for name in (
        *(f"{side}{name}" for name in _OPERATORS for side in ("", "r", "i")),
        *("neg", "pos", "abs", "invert", "round", "trunc", "floor", "ceil", "index"),
        *("int", "float", "complex", "bool", "len", "hash", "str", "repr", "format"),
        *("eq", "ne", "lt", "le", "gt", "ge", "contains", "iter", "next", "reversed"),
        *("getitem", "setitem", "delitem", "missing", "length_hint", "class_getitem"),
        *("new", "init", "post_init", "call", "enter", "exit", "copy", "deepcopy"),
        *("reduce", "reduce_ex", "getstate", "setstate", "getnewargs", "getnewargs_ex"),
        *("getattr", "getattribute", "setattr", "delattr", "get", "set", "delete"),
        *("instancecheck", "subclasscheck", "torch_function"),
    )
)
"""Names that Python or torch looks up in a class by itself."""


def _value_text(member: Any) -> str:
    try:
        return repr(encode(member.value))
    except NotPortable:
        return type(member.value).__qualname__
