"""Reads what Dynamo knows of a value of the traced code.

Rules speak of Python's objects and types. This module finds them behind Dynamo's variables, by the
attributes that a variable may have, and by no class of Dynamo's, because each torch renames some.
"""

from __future__ import annotations

import functools
import types
from typing import Any, Final, NamedTuple

import torch

from npugx_cache.portable import contents

NONE: Final[Any] = object()
"""There is no Python object for a value yet: the traced code makes it."""


class StackValue(NamedTuple):
    """One value of the traced code.

    `value` is the Python object, or `NONE`. `source` says where the value was before the call, and
    is None for what the trace made. `owner` is the variable and `name` the name of an
    attribute that Dynamo has not read yet, such as a method that is about to be called.
    `is_waiting`: Dynamo has not looked at the value.
    """

    variable: Any
    value: Any
    source: Any
    owner: Any = None
    name: str | None = None
    is_waiting: bool = False

    @property
    def is_computed(self) -> bool:
        """Whether it is computed when the graph runs."""
        fields = self.variable.__dict__
        return ("proxy" in fields and fields["proxy"] is not None) or "sym_num" in fields

    @property
    def is_of_graph(self) -> bool:
        """The same, or whether it is a container of only such values."""
        if self.is_computed:
            return True
        fields = self.variable.__dict__
        if "items" not in fields or not isinstance(items := fields["items"], (list, tuple)):
            return False
        return bool(items) and all(map(is_of_graph, items))

    @property
    def is_atomic(self) -> bool:
        """Whether nothing more can be asked: it is a plain constant, or is of the graph."""
        return id(type(self.value)) in _PLAIN or self.is_of_graph


def look_behind(variable: Any) -> StackValue:
    """The value behind a variable; a variable that Dynamo has not looked at stays so.

    A trace comes by here more often than anywhere else of ours, so no function is called in vain.
    """
    fields = variable.__dict__
    if "_cache" in fields and (waiting := fields["_cache"]) is not None:
        made = getattr(waiting, "vt", None)
        if made is not None and made is not variable:
            return look_behind(made)
        value, source = getattr(waiting, "value", NONE), getattr(waiting, "source", None)
        return StackValue(variable, value, source, is_waiting=True)
    for around in _AROUND:
        if around in fields:
            return look_behind(fields[around])
    for each in _FIELDS:
        if each in fields:
            value = fields[each]
            break
    else:
        if "_fn" in (own := type(variable).__dict__):  # some builtins have classes of their own
            value = own["_fn"]
        elif "func" in fields:  # a partial that the traced code makes
            return look_behind(fields["func"])
        else:
            value = NONE
    source = fields.get("source")
    if "obj" in fields or "ctx" in fields or type(value) is types.FunctionType:
        return StackValue(variable, value, source, *_owner_of(fields, value))
    return _new(StackValue, (variable, value, source, None, None, False))


_new = tuple.__new__


def _owner_of(fields: dict[str, Any], value: object) -> tuple[Any, str | None]:
    """The variable and the name of an attribute that Dynamo has not read yet, or nothing."""
    if "ctx" in fields:  # leaves a context
        return fields["ctx"], "__exit__"
    owner, name = fields.get("obj"), fields.get("method_name", fields.get("name"))
    if owner is None and type(value) is types.FunctionType:
        owner, name = _method_of(value)
    return (owner, name) if owner is not None and isinstance(name, str) else (None, None)


def _method_of(function: types.FunctionType) -> tuple[Any, Any]:
    """The owner and name of a method for which Dynamo has made a function, or nothing."""
    if not function.__module__ or not function.__module__.startswith("torch._dynamo."):
        return None, None
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    captured = {name: contents(cell) for name, cell in cells}
    return captured.get("self"), captured.get("name")


_AROUND = ("vt", "im_func")
"""Where variables keep the variable that they stand around: of a generator, of a bound method."""
_FIELDS = ("value", "fn", "descriptor", "wrapper_obj")
"""Where variables keep the Python object that they stand for."""


def classes_of(found: StackValue) -> list[type]:
    """The classes in which Python looks for an attribute of a value, in order."""
    fields = vars(found.variable)
    if "typevar" in fields and fields.get("objvar") is not None:  # super()
        start = constant_of(look_behind(fields["typevar"]))
        holder = look_behind(fields["objvar"])
        held = holder.value if isinstance(holder.value, type) else type_of(holder)
        order: tuple[type, ...] = held.__mro__ if held is not None else ()
        return list(order[order.index(start) + 1 :]) if start in order else []
    kind = type_of(found)
    classes = [*found.value.__mro__] if isinstance(found.value, type) else []
    return classes + ([*kind.__mro__] if kind is not None else [])


def has_attribute(found: StackValue, name: str) -> bool:
    """Whether a value or a class of it has a name; what a `__getattr__` gives does not count."""
    own = {} if found.value is NONE else getattr(found.value, "__dict__", {})
    return name in own or any(name in vars(each) for each in classes_of(found))


def constant_of(found: StackValue) -> Any:
    """The Python object behind a value, also of a constant that Dynamo keeps in its own way.

    Dynamo is asked for plain constants alone: to ask for more would install guards on all of it.
    """
    if found.value is not NONE or found.is_waiting or type_of(found) not in CONSTANTS:
        return found.value
    try:
        return found.variable.as_python_constant()
    except Exception:  # noqa: BLE001 - Dynamo raises what it likes for what is no constant
        return NONE


CONSTANTS = (
    *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
    type(torch.__version__),
)
"""Types of values that are compared as a whole."""
_PLAIN = frozenset(map(id, CONSTANTS))


def type_of(found: StackValue) -> type | None:
    """The Python type of a value, or None where Dynamo does not know it."""
    if found.value is not NONE:
        return type(found.value)
    if found.owner is not None:  # Dynamo would read the attribute, and guard all of the owner
        is_dict = found.name == "__dict__" and not isinstance(look_behind(found.owner).value, type)
        return dict if is_dict else None
    try:
        kind = found.variable.python_type()
    except Exception:  # noqa: BLE001 - as above, for what has no type
        return None
    return kind if isinstance(kind, type) else None


def is_tensor(found: StackValue) -> bool:
    """Whether a value is a tensor, of whatever class of tensors."""
    kind = type_of(found)
    return kind is not None and torch.Tensor in kind.__mro__


def is_constant(variable: Any) -> bool:
    """Whether Dynamo knows all of a value now, so that the value can become a part of the graph."""
    try:
        return bool(look_behind(variable).variable.is_python_constant())
    except Exception:  # noqa: BLE001 - as above
        return True


def is_context(found: StackValue) -> bool:
    """Whether it is a context of torch's, such as `torch.no_grad()`."""
    return hasattr(type(found.variable), "enter")


def is_of_graph(variable: Any) -> bool:
    """The same for a variable."""
    return look_behind(variable).is_of_graph


def called_name(callee: StackValue) -> str:
    """The name of the method, or of the function of Python's own, that is called; "" for others.

    An object of the user's is not asked, because its `__getattr__` would run.
    """
    return callee.name or (callee.value.__name__ if isinstance(callee.value, _IN_C) else "")


_IN_C = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    types.MethodWrapperType,
)


def codes_of(callee: Any) -> list[types.CodeType]:
    """The code that Python runs first for a call, and the code of what decorators wrap."""
    codes: list[types.CodeType] = []
    while callee is not None and len(codes) < _MAX_WRAPPED:
        if isinstance(callee, (types.MethodType, staticmethod, classmethod)):
            callee = callee.__func__
        if isinstance(callee, (functools.partial, functools.partialmethod)):
            callee = callee.func
        code = getattr(callee, "__code__", None)
        if isinstance(code, types.CodeType):
            codes.append(code)
        callee = getattr(callee, "__wrapped__", None)
    return codes


_MAX_WRAPPED = 16


def code_made_here(found: StackValue) -> types.CodeType | None:
    """The code of a function that the traced code itself makes, such as a lambda."""
    fields = vars(found.variable)
    code = fields.get("code")
    if code is not None and not isinstance(code, types.CodeType):
        code = constant_of(look_behind(code))
    return code if isinstance(code, types.CodeType) else None


def table_of(variable: Any) -> Any:
    """The variable for the items of a container, also of one of a derived class."""
    inner = (vars(variable).get(name) for name in _TABLES)
    return next((each for each in inner if each is not None), variable)


_TABLES = ("_base_vt", "_dict_vt", "_list_vt", "_set_vt", "_tuple_vt")
"""Where Dynamo keeps the items of derived classes; the first of them since torch 2.12."""
