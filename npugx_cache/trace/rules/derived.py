"""Rules about operators and copies of objects of user classes, where Dynamo is not as CPython.

Since torch 2.13 Dynamo plays the operators of CPython's `abstract.c` and `object.c`. An older one
has shortcuts: an operator of a class derived from `list` gives an object of that class, a reflected
method is not asked, and a named tuple is its fields whatever its class says. What may differ is
refused there. Some shortcuts for classes derived from `dict` are left in each torch.
"""

from __future__ import annotations

import collections
import enum
import inspect
import types
from typing import TYPE_CHECKING, Any

from npugx_cache.portable import is_covered_class
from npugx_cache.trace.rules import attributes, by_value
from npugx_cache.trace.rules.attributes import (
    PLAYS_CPYTHON,
    is_frozen,
    is_named_tuple,
    is_of_users,
)
from npugx_cache.trace.stack_value import StackValue, called_name, look_behind, type_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)


def obstacle_of_operator(operands: Iterable[Any]) -> str | None:
    """Why an operator on these operands may give something else than in Python, or None."""
    if PLAYS_CPYTHON:
        return None
    kinds: list[Any] = [type_of(look_behind(each)) for each in operands]
    if any(kind is list for kind in kinds) and any(kind is tuple for kind in kinds):
        return "an operator of a list and a tuple is not traced with this torch"
    own = [kind for kind in kinds if is_of_users(kind) and not issubclass(kind, enum.Enum)]
    found = next((kind for kind in own if issubclass(kind, _CONTAINERS)), None)
    if found is None and len(own) > 1 and _asks_both(own):
        found = own[0]
    if found is not None:
        return f"an operator of {found.__qualname__} is not traced with this torch"
    return None


def _asks_both(kinds: list[Any]) -> bool:
    """Whether Python may ask the right operand as well, or before: old Dynamo never does."""
    bases = (each for kind in kinds for each in kind.__mro__ if not is_covered_class(each))
    methods = [vars(each).get(name) for each in bases for name in _ASKED]
    codes = [each.__code__ for each in methods if isinstance(each, types.FunctionType)]
    if any(kind is not kinds[0] for kind in kinds):
        return bool(codes)
    written = [code for code in codes if code.co_filename != "<string>"]  # not by a dataclass
    return any("NotImplemented" in code.co_names for code in written)


_ASKED = [name for name in by_value.ANYTHING if name not in ("__hash__", "__call__", "__repr__")]


def obstacle_of_merge(operands: Iterable[Any]) -> str | None:
    """Why `{**d}`, `f(**d)` or `d | e` may not ask a dict as Python does, or None."""
    for each in operands:
        if _has_own_walk(kind := type_of(look_behind(each))):
            return f"a dict of {_name(kind)} is merged, which has methods of its own for that"
    return None


def obstacle_of_call(callee: StackValue, args: list[Any], *, has_named: bool) -> str | None:
    """Why a function of Python's own does not do what the classes of its arguments say, or None.

    `has_named`: whether the call has arguments by name as well.
    """
    function, holder = callee.value, callee.owner
    if function is vars and args:
        return attributes.obstacle_of_read(look_behind(args[0]), "__dict__")
    kinds: list[Any] = [type_of(look_behind(each)) for each in args]
    if holder is None:
        holder = vars(callee.variable).get("obj")
    if isinstance(function, type) and holder is None:
        made = _obstacle_of_making(function, kinds, is_filled=bool(args) or has_named)
        return made or _obstacle_of_walk(function.__name__, kinds)
    name = called_name(callee)
    if holder is not None:
        owner = look_behind(holder)
        if not isinstance(owner.value, type):
            return _obstacle_of_method(name, [type_of(owner), *kinds], is_unbound=False)
        is_of_dict = any(owner.value is each for each in _DICTS)  # before torch 2.13
        return _obstacle_of_method(name, kinds, is_unbound=True) if is_of_dict else None
    if isinstance(function, types.MethodDescriptorType):
        is_of_dict = any(function.__objclass__ is each for each in _DICTS)
        return _obstacle_of_method(name, kinds, is_unbound=True) if is_of_dict else None
    if not isinstance(function, types.BuiltinFunctionType):
        return None
    if function.__module__ == "_operator":
        if name in ("or_", "ior") and (reason := obstacle_of_merge(args)):
            return reason
        return obstacle_of_operator(args) if name not in _NO_OPERATORS else None
    return _obstacle_of_walk(name, kinds)


_NO_OPERATORS = frozenset({"getitem", "setitem", "delitem", "contains", "is_", "is_not", "index"})
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)


def _obstacle_of_walk(name: str, kinds: list[Any]) -> str | None:
    for kind in () if PLAYS_CPYTHON else kinds:
        if is_named_tuple(kind) and any(_has_own(kind, asked) for asked in _ASKED_OF_TUPLES):
            return f"{name}() of {_name(kind)} is not traced with this torch"
    return None


_ASKED_OF_TUPLES = ("__len__", "__iter__", "__getitem__", "__contains__", "index", "count")


def _obstacle_of_method(name: str, kinds: list[Any], *, is_unbound: bool) -> str | None:
    """The same for a method of `dict`, which C code answers for a class derived from `dict`."""
    owner = kinds[0] if kinds else None
    if not isinstance(owner, type) or not issubclass(owner, dict):
        return None
    if _has_own(owner, name):
        what = f"{name}() of {_name(owner)} is not traced by the function of a base class"
        return what if is_unbound else None
    if name == "copy" and _has_own_walk(owner):
        return f"copy() of {_name(owner)} is not traced, because the class has methods of its own"
    is_filling = name in ("update", "setdefault") and issubclass(owner, collections.OrderedDict)
    if is_filling and _has_own(owner, "__setitem__"):
        return f"{name}() of {_name(owner)} is not traced, which has its own __setitem__"
    if name == "update":
        return next((_reason_of_copy(kind) for kind in kinds[1:] if _has_own_walk(kind)), None)
    return None


def _reason_of_copy(kind: Any) -> str:
    return f"a dict of {_name(kind)} is copied without its own methods"


def _obstacle_of_making(cls: type, kinds: list[Any], *, is_filled: bool) -> str | None:
    if cls is types.MappingProxyType and (shown := next(filter(is_of_users, kinds), None)):
        return f"a mappingproxy of {_name(shown)} is traced without its own methods"
    if issubclass(cls, dict) and not _has_own(cls, "__init__"):
        if walked := next(filter(_has_own_walk, kinds), None):
            return _reason_of_copy(walked)
        is_ordered = issubclass(cls, collections.OrderedDict)
        if is_filled and is_ordered and _has_own(cls, "__setitem__"):
            return f"a dict of {_name(cls)} is filled without its own __setitem__"
    if PLAYS_CPYTHON or not is_frozen(cls) or is_covered_class(cls):
        return None
    maker = inspect.getattr_static(cls, "__init__")
    if getattr(maker, "__code__", _NO_CODE).co_filename != "<string>":
        return f"the __init__ of {_name(cls)} is not traced with this torch"
    return None


_NO_CODE = (lambda: None).__code__


def _name(kind: Any) -> str:
    return str(kind.__qualname__)


def _has_own_walk(kind: Any) -> bool:
    """Whether a class derived from dict has a method by which somebody may walk it."""
    if not is_of_users(kind) or not issubclass(kind, dict):
        return False
    return any(_has_own(kind, name) for name in ("__iter__", "keys", "items", "__getitem__"))


def _has_own(cls: Any, name: str) -> bool:
    """Whether a class has a method from a user's class, not from Python's own."""
    holder = next((each for each in getattr(cls, "__mro__", ()) if name in vars(each)), None)
    return holder is not None and not is_covered_class(holder)
