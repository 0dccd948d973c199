"""Rules about what depends on the value of an object: each such object has a guard on its value.

Torch guards the type of an object alone, because what code reads of the object has places of its
own. What C code reads has none: `date == date` is answered by the C code of a class, which looks
into both. So an object whose special method is C code is refused, unless Dynamo knows what is in
it: a constant, a container of Python's own, a value of the graph, or an object that is guarded by
its identity.
"""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import itertools
import operator
import sys
import types
import typing
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.trace.observe import numpy_numbers
from npugx_cache.trace.rules.values import NAMED
from npugx_cache.trace.stack_value import CONSTANTS, codes_of, look_behind, type_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COMPARED = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__"})
"""What asks the parts of a container as well."""
WALK = ("__iter__", "__next__", "__len__", "__getitem__", "keys")
ANYTHING = (
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__bool__"),
    *("__len__", "__iter__", "__next__", "__getitem__", "__contains__", "__str__", "__repr__"),
    *("__format__", "__bytes__", "__int__", "__index__", "__float__", "__complex__", "__trunc__"),
    *("__abs__", "__neg__", "__pos__", "__invert__", "__round__", "__floor__", "__ceil__"),
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__"),
    *("__rtruediv__", "__floordiv__", "__rfloordiv__", "__mod__", "__rmod__", "__divmod__"),
    *("__rdivmod__", "__pow__", "__rpow__", "__and__", "__or__", "__xor__", "__lshift__"),
    *("__rand__", "__ror__", "__rxor__", "__rlshift__", "__rrshift__", "__rshift__"),
    *("__matmul__", "__rmatmul__", "__missing__", "__call__", "__length_hint__", "__reversed__"),
)
"""The special methods by which C code may look into an object."""

_ITERATED: tuple[Any, ...] = ([], (), {}, set(), range(0), "", {}.values(), {}.items())
_KNOWN = frozenset(
    map(
        id,
        (
            *(object, type, int, float, complex, bool, str, bytes, torch.Size, torch.Tensor),
            *(list, tuple, dict, set, frozenset, range, slice, BaseException, super, property),
            *(collections.OrderedDict, collections.defaultdict, collections.deque),
            *(type({}.keys()), type({}.values()), type({}.items()), types.MappingProxyType),
            *(enumerate, zip, map, filter, reversed, functools.partial),
            *(type(iter(each)) for each in _ITERATED),
            *(types.GeneratorType, itertools.count),
            type(sys.version_info),  # has one object, and the version of Python is in the key
        ),
    )
)
"""The classes of `is_of_python`, by id: a metaclass may have a hash of its own."""

_UNKNOWN: dict[type, frozenset[str]] = {
    functools.partial: frozenset({"__eq__", "__ne__"}),
    types.MappingProxyType: frozenset({"__eq__", "__ne__", "__bool__"}),
}
"""Questions about objects of a class above that Dynamo answers as Python would not."""

_MAX_DEPTH = 8


def obstacle(variable: Any, names: tuple[str, ...]) -> str | None:
    """Why nobody notices that the value of an object changes which a question is about, or None.

    `names` are the special methods that are asked. A comparison asks what a container holds, too.
    """
    if not names:
        return None
    found = look_behind(variable)
    if type(found.value) in CONSTANTS or found.is_of_graph:
        return None
    depth = _MAX_DEPTH if not COMPARED.isdisjoint(names) else 0
    reasons = (_reason(part, names) for part in _parts(variable, depth))
    return next((each for each in reasons if each is not None), None)


def obstacle_of_search(searched: Any, container: Any) -> str | None:
    """The same for `searched in container`, which compares with each element."""
    items = vars(look_behind(container).variable).get("items")
    asked = (searched, *(items if isinstance(items, (list, tuple)) else ()))
    return next(filter(None, (obstacle(each, ("__eq__",)) for each in asked)), None)


def obstacle_of_call(function: Any, args: Iterable[Any]) -> str | None:
    """The same for a call of a function of Python's own, which may ask its arguments anything."""
    if asks_kinds(function):
        return None
    asked: list[tuple[str, ...]] = [WALK if id(function) in _KEEPING else ANYTHING]
    if getattr(function, "__module__", None) == "_operator":
        asked.append((f"__{function.__name__.strip('_')}__",))
    return next(filter(None, (obstacle(each, names) for each in args for names in asked)), None)


def is_of_python(kind: type | None) -> bool:
    """Whether Dynamo knows each part of an object of a class, or its methods ask nothing."""
    return id(kind) in _KNOWN


def asks_kinds(function: Any) -> bool:
    """Whether a function asks for no more than the class or an attribute, or keeps its argument."""
    return id(function) in _OF_KINDS


def asked_by(function: Any, args: Iterable[Any]) -> tuple[tuple[str, ...], Iterator[Any]]:
    """The special methods that a function of Python's own may ask, and the values it may ask.

    Methods for texts and hashes have rules of their own.
    """
    if getattr(function, "__module__", None) == "_operator":
        name = function.__name__.strip("_")
        names = f"__{name}__", f"__r{name}__", f"__{_REFLECTED.get(name, name)}__"
        if names[0] in ANYTHING and name != "length_hint":
            return names, parts(args)
    if id(function) in _KEEPING:  # nothing is asked of the items
        return WALK, iter(args)
    if _calls_nothing(function):
        return BY_METHODS, parts(args)
    return BY_CALLS, parts(args)


def _calls_nothing(function: Any) -> bool:
    """Whether a function of Python's own calls no argument while it runs.

    What an iterator calls, Dynamo interprets later.
    """
    if id(function) in _CALLING_NOTHING or getattr(function, "__name__", None) == "__new__":
        return True
    return getattr(function, "__module__", None) == "itertools"


_REFLECTED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
"""The comparison that Python asks of the other operand."""

_WITH_RULES = frozenset({"__str__", "__repr__", "__format__", "__hash__", "__contains__"})
BY_CALLS = tuple(name for name in ANYTHING if name not in _WITH_RULES)
"""The special methods by which code that is called may look into an argument, or call it."""
BY_METHODS = tuple(name for name in BY_CALLS if name != "__call__")
"""The same for code that calls no argument, as almost all methods of Python's own."""


def obstacle_of_method(holder: type, name: str, args: Iterable[Any]) -> str | None:
    """The same for a method of a class of Python's own; one of `object` looks into no argument."""
    if keeps(holder, name):
        return None
    return next(filter(None, (obstacle(each, ANYTHING) for each in args)), None)


def keeps(holder: type, name: str) -> bool:
    """Whether a method of Python's own looks into no argument."""
    return name in _STORING or holder in (object, type)


def parts(values: Iterable[Any]) -> Iterator[Any]:
    """The values, and what the lists, tuples, sets and dicts of the trace among them hold."""
    for each in values:
        yield from _parts(each, _MAX_DEPTH)


_OF_KINDS = frozenset(
    map(
        id,
        (
            *(isinstance, issubclass, callable, getattr, hasattr, setattr, delattr, type, super),
            *(object, vars, operator.is_, operator.is_not, operator.getitem, operator.setitem),
            *(functools.partial, types.MethodType, types.SimpleNamespace, slice, property),
            *(staticmethod, classmethod, typing.cast, torch.utils._pytree.tree_map),
        ),
    )
)
"""The functions of `asks_kinds`."""

_KEEPING = frozenset(
    map(
        id,
        (
            *(len, list, tuple, dict, zip, enumerate, iter, next, reversed, map, filter),
            *(collections.OrderedDict, collections.deque, collections.defaultdict),
            *(itertools.chain, itertools.islice, itertools.repeat, itertools.product),
        ),
    )
)
"""Functions that walk an argument, and ask nothing of what they find there."""

_CALLING_NOTHING = frozenset(
    map(id, (all, any, bool, str, repr, format, set, frozenset, inspect.signature))
)
"""Functions that ask an argument something, and call none."""

_STORING = frozenset(
    {
        *("append", "appendleft", "insert", "extend", "extendleft", "setdefault", "update", "get"),
        *("pop", "popitem", "popleft", "copy", "clear", "reverse", "keys", "values", "items"),
        *("__setitem__", "__getitem__", "__delitem__", "__init__", "__new__", "__iter__"),
        *("__len__", "__next__", "__reversed__", "fromkeys", "move_to_end", "rotate"),
    }
)
"""Methods of containers that keep or give elements, and compare none; keys are conditions."""


def _parts(variable: Any, depth: int) -> Iterator[Any]:
    """A value and what it holds, if it is a list, a tuple, a set or a dict of the trace."""
    yield variable
    items = vars(look_behind(variable).variable).get("items") if depth else None
    inner = items.values() if isinstance(items, dict) else items
    if isinstance(inner, (list, tuple, type({}.values()))):
        for each in inner:
            if hasattr(each, "__dict__"):
                yield from _parts(each, depth - 1)


def _reason(variable: Any, names: tuple[str, ...]) -> str | None:
    found, kind = look_behind(variable), _kind(variable)
    if found.is_of_graph or kind in CONSTANTS:
        return None
    if kind is None:
        is_unread = found.owner is not None  # reading it gives a value that comes by again
        return (
            None if found.source is None or is_unread else "torch does not say of which type it is"
        )
    if issubclass(kind, NAMED):
        return None
    # A function that may ask anything is given a partial to call, as `sorted(key=...)` is.
    if names is not ANYTHING and not _UNKNOWN.get(kind, frozenset()).isdisjoint(names):
        return f"torch does not compare a {kind.__qualname__} as Python does"
    if found.source is None:
        return None  # the trace has made it, and knows of what
    if is_of_python(kind) or issubclass(kind, enum.Enum) or numpy_numbers.is_constant(found.value):
        return None
    for name in names:
        if name == "__class_getitem__":  # Python asks that of a class alone
            continue
        holder = next((each for each in kind.__mro__ if name in vars(each)), object)
        method = None if is_of_python(holder) else vars(holder)[name]
        if method is not None and not codes_of(method):
            return f"the value of a {kind.__qualname__} has no guard, which its {name} asks for"
    return None


def _kind(variable: Any) -> type | None:
    """The type of a value; also of a partial, for which `look_behind` gives the function."""
    made = getattr(vars(variable).get("_cache"), "vt", variable) or variable
    fields = vars(made).keys()
    if {"func", "keywords"} <= fields:
        return functools.partial
    kind = type_of(look_behind(made))
    # Dynamo says the same of the `__dict__` of an object, which is a dict.
    return dict if kind is types.MappingProxyType and "dv_dict" not in fields else kind
