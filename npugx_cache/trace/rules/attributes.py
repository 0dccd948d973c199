"""Rules about attributes of objects of user classes, where Dynamo is not as CPython.

Before torch 2.13 a write to an attribute passes by properties and slots, an attribute of a named
tuple is a field whatever its class says, the `__dict__` of some objects is made up, and an
attribute of a thread-local is that of its class. What may differ is refused there. A name that is
deleted and set again loses its place in each torch.
"""

from __future__ import annotations

import inspect
import threading
import types
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch._dynamo import variables

from npugx_cache.portable import is_covered_class
from npugx_cache.trace.observe import numpy_arrays
from npugx_cache.trace.rules import copies
from npugx_cache.trace.rules.values import Entry
from npugx_cache.trace.stack_value import NONE, StackValue, look_behind, type_of

if TYPE_CHECKING:
    from npugx_cache.trace.observe.observation import Recorder

PLAYS_CPYTHON = hasattr(getattr(variables, "object_protocol", None), "generic_richcompare")
"""Whether this torch plays CPython's operators and writes to attributes."""

_FIELD: type = type(vars(Entry)["value"])
"""What reads a field of a named tuple."""
_METHODS = (
    *(types.FunctionType, staticmethod, classmethod),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
)


class _AttributeWrites(dict[tuple[int, str], tuple[Any, bool]]):
    """The attributes that a trace has written, by the `id` of the variable, which stays alive.

    With it: whether the attribute was there and was then deleted.
    """


def obstacle_of_read(found: StackValue, name: str) -> str | None:
    """Why what Dynamo gives for an attribute may not be what the class gives, or None."""
    if (reason := numpy_arrays.obstacle_of_name(found.variable, name)) is not None:
        return reason
    if name == "__reduce_ex__":
        return copies.obstacle_of_reduce(found)
    kind: Any = type_of(found)
    if name == "__dict__" and found.source is None and is_frozen(kind):
        return f"the __dict__ of a new {kind.__qualname__} is not traced"
    if PLAYS_CPYTHON or isinstance(found.value, type):
        return None
    return _obstacle_of_read_in_older_torch(found, kind, name)


def _obstacle_of_read_in_older_torch(found: StackValue, kind: Any, name: str) -> str | None:
    if name == "__dict__" and is_of_users(kind) and _has_slots(kind):
        return f"the __dict__ of a {kind.__qualname__} is not traced with this torch"
    if isinstance(found.value, threading.local) and _hides(found.value, name):
        return f"the attribute {name} hides that of the class {kind.__qualname__}, a thread-local"
    if name == "args" and isinstance(kind, type) and issubclass(kind, BaseException):
        return "what an exception says is not traced with this torch"
    if not is_named_tuple(kind):
        return None
    member = inspect.getattr_static(kind, name, NONE)
    if kind is not None and kind.__module__ == "torch.return_types" and name.startswith("_"):
        return f"{name} of what an operator returns is not traced with this torch"
    if member is NONE or name == "_fields" or isinstance(member, (_FIELD, *_METHODS)):
        return None
    if is_covered_class(_holder(kind, name)):
        return None
    return f"the attribute {name} of a {kind.__qualname__} is not traced with this torch"


def obstacle_of_write(recorder: Recorder, found: StackValue, name: str, value: Any) -> str | None:
    """Why a write to an attribute may do something else than in Python, or None.

    `value` is the variable that is set, or None if the attribute is deleted.
    """
    if name == "__class__":
        return "the class of an object is changed"
    written, key = recorder.state(_AttributeWrites), (id(found.variable), name)
    before = written.get(key)
    if value is not None and before is not None and before[1]:
        # Python puts the name last, and the caller frame where it was.
        return f"the attribute {name} is deleted and set again"
    was_there = before is not None or found.source is not None
    written[key] = found.variable, value is None and was_there
    kind = type_of(found)
    if PLAYS_CPYTHON or kind is None or isinstance(found.value, type):
        return None
    return _obstacle_of_older_torch(kind, name, value)


def _obstacle_of_older_torch(kind: type, name: str, value: Any) -> str | None:
    if value is None:
        is_own = is_of_users(kind)
        return f"the attribute {name} is deleted, which is not traced here" if is_own else None
    set_to = type_of(look_behind(value))
    if issubclass(kind, nn.Module) and set_to and issubclass(set_to, (nn.Module, nn.Parameter)):
        return f"a {set_to.__qualname__} is set in a module, which is not traced with this torch"
    member = inspect.getattr_static(kind, name, NONE)
    if isinstance(member, types.MemberDescriptorType):
        return None
    if is_of_users(kind) and _has_slots(kind):
        return f"the attribute {name} is no slot of {kind.__qualname__}"
    if member is NONE or is_covered_class(_holder(kind, name)):
        return None
    setter = inspect.getattr_static(type(member), "__set__", None)
    if setter is not None and not isinstance(setter, types.FunctionType):
        return f"the attribute {name} is a {type(member).__name__} of {kind.__qualname__}"
    return None


def _hides(value: threading.local, name: str) -> bool:
    """Whether a thread-local has an attribute for this thread that its class has as well."""
    own = threading.local.__getattribute__(value, "__dict__")
    return name in own and any(name in vars(each) for each in type(value).__mro__)


def _holder(kind: type, name: str) -> type:
    """The class that gives a class an attribute, by itself or as its metaclass."""
    return next((each for each in kind.__mro__ if name in vars(each)), type(kind))


def obstacle_of_item_write(container: Any) -> str | None:
    """Why a write to an item may pass by the object whose `__dict__` it is in, or None."""
    found = look_behind(container)
    is_dict = found.name == "__dict__" or getattr(found.source, "member", None) == "__dict__"
    table = vars(found.variable).get("items")
    follows = isinstance(table, MutableMapping) and not isinstance(table, dict)  # an object's names
    if PLAYS_CPYTHON or not (is_dict or follows):
        return None
    return "an item of a __dict__ is set, which is not traced with this torch"


def _has_slots(kind: type) -> bool:
    own = (each for each in kind.__mro__ if not is_covered_class(each))
    return any("__slots__" in vars(each) for each in own)


def is_frozen(kind: Any) -> bool:
    if not isinstance(kind, type):
        return False
    parameters = inspect.getattr_static(kind, "__dataclass_params__", None)
    return bool(getattr(parameters, "frozen", False))


def is_of_users(kind: Any) -> bool:
    return isinstance(kind, type) and not is_covered_class(kind)


def is_named_tuple(kind: Any) -> bool:
    if not isinstance(kind, type) or not issubclass(kind, tuple):
        return False
    return any("_fields" in vars(each) for each in kind.__mro__)
