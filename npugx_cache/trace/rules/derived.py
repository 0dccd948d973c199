"""Rules about objects of user classes, where Dynamo does not do what CPython does.

Since torch 2.13 Dynamo plays the operators of CPython's `abstract.c` and `object.c`. An older one
has shortcuts: an operator of a class derived from `list` gives an object of that class, a reflected
method is not asked, a named tuple is its fields whatever its class says, and a write to an
attribute passes by properties and slots. All of that is refused there. Some shortcuts of classes
derived from `dict` are left in each torch.
"""

from __future__ import annotations

import collections
import enum
import inspect
import types
from typing import TYPE_CHECKING, Any

from torch._dynamo import variables

from npugx_cache.portable import is_covered_class
from npugx_cache.trace.rules import by_value
from npugx_cache.trace.rules.values import Entry
from npugx_cache.trace.stack_value import NONE, StackValue, called_name, look_behind, type_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npugx_cache.trace.observe.observation import Recorder

PLAYS_CPYTHON = hasattr(getattr(variables, "object_protocol", None), "generic_richcompare")
"""Whether this torch plays CPython's operators and writes to attributes."""

_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_FIELD: type = type(vars(Entry)["value"])
"""What reads a field of a named tuple."""
_METHODS = (
    *(types.FunctionType, staticmethod, classmethod),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
)


def obstacle_of_operator(operands: Iterable[Any]) -> str | None:
    """Why an operator on these operands may give something else than in Python, or None."""
    kinds: list[Any] = [type_of(look_behind(each)) for each in operands]
    own = [kind for kind in kinds if _is_of_users(kind) and not issubclass(kind, enum.Enum)]
    if walked := next((kind for kind in own if _has_own_walk(kind)), None):
        return f"a {walked.__qualname__} walks in its own way, which an operator does not do"
    if PLAYS_CPYTHON:
        return None
    if {list, tuple} <= {*kinds}:
        return "an operator of a list and a tuple is not traced with this torch"
    found = next((kind for kind in own if issubclass(kind, _CONTAINERS)), None)
    if found is None and len(own) > 1 and _asks_both(own):
        found = own[0]
    if found is not None:
        return f"an operator of a {found.__qualname__} is not traced with this torch"
    return None


def _asks_both(kinds: list[Any]) -> bool:
    """Whether Python may ask the right operand as well, or before: old Dynamo never does."""
    methods = [vars(each).get(name) for kind in kinds for each in kind.__mro__ for name in _ASKED]
    codes = [each.__code__ for each in methods if isinstance(each, types.FunctionType)]
    if len({*kinds}) > 1:
        return bool(codes)
    is_own = (code.co_filename != "<string>" for code in codes)  # not of a dataclass
    has_none = ("NotImplemented" in code.co_names for code in codes)
    return any(map(all, zip(is_own, has_none, strict=True)))


_ASKED = [name for name in by_value.ANYTHING if name not in ("__hash__", "__call__", "__repr__")]


def obstacle_of_call(callee: StackValue, args: list[Any]) -> str | None:
    """Why a function of Python's own does not do what the classes of its arguments say, or None."""
    function, name = callee.value, called_name(callee)
    if function is vars and args:
        return obstacle_of_read(look_behind(args[0]), "__dict__")
    if getattr(function, "__module__", None) == "_operator":
        return obstacle_of_operator(args) if name not in _NO_OPERATORS else None
    kinds: list[Any] = [type_of(look_behind(each)) for each in args]
    is_unbound = getattr(function, "__objclass__", None) in _DICTS
    holder = callee.owner if callee.owner is not None else vars(callee.variable).get("obj")
    if holder is not None:
        owner = look_behind(holder)
        if isinstance(owner.value, type):  # dict.items(d), before torch 2.13
            is_unbound = owner.value in _DICTS
        else:
            kinds.insert(0, type_of(owner))
    elif isinstance(function, type) and (reason := _obstacle_of_making(function, kinds)):
        return reason
    return _obstacle_of_method(name, kinds, is_unbound=is_unbound) or _obstacle_of_walk(
        function, kinds
    )


def _obstacle_of_walk(function: Any, kinds: list[Any]) -> str | None:
    if PLAYS_CPYTHON or not isinstance(function, (types.BuiltinFunctionType, type)):
        return None
    for kind in kinds:
        if _is_named_tuple(kind) and any(_has_own(kind, asked) for asked in _ASKED_OF_TUPLES):
            what = f"{function.__name__}() of a {kind.__qualname__}"
            return f"{what} is not traced with this torch"
    return None


_NO_OPERATORS = frozenset({"getitem", "setitem", "delitem", "contains", "is_", "is_not", "index"})


def _obstacle_of_method(name: str, kinds: list[Any], *, is_unbound: bool) -> str | None:
    """The same for a method of `dict`, which C code answers for a class derived from `dict`."""
    if not kinds or kinds[0] is None or not issubclass(kinds[0], dict):
        return None
    owner, *given = kinds
    if _has_own(owner, name) and not is_unbound:
        return None
    what = f"{name}() of a {owner.__qualname__}"
    if name == "copy" and _has_own_walk(owner):
        return f"{what} is not traced, because the class has methods of its own"
    if name in _FILLING and any(map(_has_own_walk, given)):
        return f"{what} is not traced for what has methods of its own"
    is_ordered = issubclass(owner, collections.OrderedDict)
    if name in _FILLING and is_ordered and _has_own(owner, "__setitem__"):
        return f"{what} is not traced, because the class has its own __setitem__"
    if _has_own(owner, name):  # dict.items(d) of a class that has its own items()
        return f"{what} is not traced by the function of a base class"
    return None


_FILLING = frozenset({"update", "setdefault", "__or__", "__ror__", "__ior__"})
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)


def _obstacle_of_making(cls: type, kinds: list[Any]) -> str | None:
    if cls in _DICTS and (walked := next(filter(_has_own_walk, kinds), None)):
        return f"a {walked.__qualname__} is copied without its own methods"
    is_filled = bool(kinds) and issubclass(cls, collections.OrderedDict)
    if is_filled and _has_own(cls, "__setitem__") and not _has_own(cls, "__init__"):
        return f"a {cls.__qualname__} is filled without its own __setitem__"
    if PLAYS_CPYTHON or not _is_frozen(cls) or is_covered_class(cls):
        return None
    maker = inspect.getattr_static(cls, "__init__")
    if getattr(maker, "__code__", _NO_CODE).co_filename != "<string>":
        return f"the __init__ of {cls.__qualname__} is not traced with this torch"
    return None


_NO_CODE = (lambda: None).__code__


def _has_own_walk(kind: Any) -> bool:
    """Whether a class derived from dict has methods by which somebody may walk it."""
    if kind is None or not issubclass(kind, dict) or not _is_of_users(kind):
        return False
    return any(_has_own(kind, name) for name in _OF_WALKS)


_OF_WALKS = ("keys", "items", "values", "__iter__", "__getitem__", "__setitem__", "copy")
_ASKED_OF_TUPLES = ("__len__", "__iter__", "__getitem__", "__contains__", "index", "count")


def _has_own(cls: Any, name: str) -> bool:
    """Whether a class has a method from a user's class, not from Python's own."""
    holder = next((each for each in getattr(cls, "__mro__", ()) if name in vars(each)), None)
    return holder is not None and not is_covered_class(holder)


def _is_frozen(kind: Any) -> bool:
    return bool(getattr(getattr(kind, "__dataclass_params__", None), "frozen", False))


def _is_of_users(kind: Any) -> bool:
    return isinstance(kind, type) and not is_covered_class(kind)


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


# --- attributes


class _Deleted(set[tuple[int, str]]):
    """The attributes that a trace has deleted: the `id` of the variable, and the name."""


def obstacle_of_read(found: StackValue, name: str) -> str | None:
    """Why what Dynamo gives for an attribute may not be what the class gives, or None."""
    kind: Any = type_of(found)
    if name == "__dict__" and found.source is None and _is_frozen(kind):
        return f"the __dict__ of a new {kind.__qualname__} is not traced"
    if PLAYS_CPYTHON or isinstance(found.value, type):
        return None
    if name == "__dict__" and _is_of_users(kind) and _slots(kind):
        return "the __dict__ of an object with slots is not traced with this torch"
    if name == "args" and isinstance(kind, type) and issubclass(kind, BaseException):
        return "what an exception says is not traced with this torch"
    if not _is_named_tuple(kind):
        return None
    member = inspect.getattr_static(kind, name, NONE)
    if kind is not None and kind.__module__ == "torch.return_types" and name.startswith("_"):
        return f"{name} of what an operator returns is not traced with this torch"
    if member is NONE or name == "_fields" or isinstance(member, (_FIELD, *_METHODS)):
        return None
    if is_covered_class(next(each for each in kind.__mro__ if name in vars(each))):
        return None
    return f"the attribute {name} of a {kind.__qualname__} is not traced with this torch"


def obstacle_of_write(
    recorder: Recorder, found: StackValue, name: str, *, deletes: bool
) -> str | None:
    """Why a write to an attribute may do something else than in Python, or None."""
    if name == "__class__":
        return "the class of an object is changed"
    deleted, key = recorder.state(_Deleted), (id(found.variable), name)
    if deletes:
        deleted.add(key)
    elif key in deleted:  # Python puts the name last, and the caller frame where it was
        return f"the attribute {name} is deleted and set again"
    kind: Any = type_of(found)
    if PLAYS_CPYTHON or kind is None or isinstance(found.value, type):
        return None
    if deletes and _is_of_users(kind):
        return f"the attribute {name} is deleted, which is not traced with this torch"
    member = inspect.getattr_static(kind, name, NONE)
    if isinstance(member, types.MemberDescriptorType):
        return None
    if _is_of_users(kind) and _slots(kind):
        return f"the attribute {name} is no slot of {kind.__qualname__}"
    setter = inspect.getattr_static(type(member), "__set__", None) if member is not NONE else None
    if setter is not None and not isinstance(setter, types.FunctionType):
        return f"the attribute {name} is a {type(member).__name__} of {kind.__qualname__}"
    return None


def obstacle_of_item_write(container: Any) -> str | None:
    """Why a write to an item may pass by the object whose `__dict__` it is in, or None."""
    found = look_behind(container)
    is_dict = found.name == "__dict__" or getattr(found.source, "member", None) == "__dict__"
    if PLAYS_CPYTHON or not is_dict:
        return None
    return "an item of a __dict__ is set, which is not traced with this torch"


def _slots(kind: type) -> bool:
    own = (each for each in kind.__mro__ if not is_covered_class(each))
    return any("__slots__" in vars(each) for each in own)
