"""Attributes of classes that torch before 2.13 reads without a guard. Checked on torch 2.11.

There `Box.size`, `cls.size`, `type(box).__name__` and the defaults of a namedtuple's fields are
constants of the trace, whatever is changed later. Importing this module loads the compiler.
"""

from __future__ import annotations

import enum
import functools
import inspect
from typing import TYPE_CHECKING, Any

from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, DictGetItemSource
from torch._dynamo.variables import VariableTracker, constant, user_defined

from npugx_cache._compat import hooks, unguarded
from npugx_cache._compat.runtime import torch_version
from npugx_cache.covered import is_covered_module
from npugx_cache.portable import NotPortable, look_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._guards import Source


def _source_of(tx: Any, cls: type) -> Source | None:
    """What leads to a class that was met on the way, such as the `cls` of a method."""
    try:
        if look_up(cls.__module__, cls.__qualname__) is not cls:
            return None
    except NotPortable:
        return None
    source: Source = tx.import_source(cls.__module__)
    for name in cls.__qualname__.split("."):
        source = AttrSource(source, name)
    return source


def _guard(tx: Any, owner: Any, name: str, read: Any, field: str | None = None) -> None:
    """Guard what was read of a class, if torch made a constant of it."""
    asked, cls = unguarded.asked(), owner.value
    if asked is None or read.source is not None or is_covered_module(cls.__module__):
        return
    if not read.is_python_constant():
        return
    value = read.as_python_constant()
    is_literal = constant.ConstantVariable.is_literal(value)
    source = owner.source or _source_of(tx, cls)
    if source is None or not (is_literal or isinstance(value, enum.Enum)):
        what = f"{name} of the class {cls.__qualname__}"
        asked.refuse(f"with this torch {what} has no guard")
        return
    kind = GuardBuilder.CONSTANT_MATCH if is_literal else GuardBuilder.ID_MATCH
    source = AttrSource(source, name)
    install_guard((DictGetItemSource(source, field) if field else source).make_guard(kind))


def _guarding_attributes(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarding(self: Any, tx: Any, name: str) -> Any:
        read = method(self, tx, name)
        found = inspect.getattr_static(self.value, name, None)
        # A method has its code for a guard, and `__dict__` those of what is read from it.
        if not callable(found) and not isinstance(found, (staticmethod, classmethod, property)):
            _guard(tx, self, name, read)
        return read

    return guarding


def _guarding_defaults(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarding(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        made = method(self, tx, args, kwargs)
        defaults = getattr(self.value, "_field_defaults", {})
        names = self.value._fields[len(args) :] if defaults else ()
        for name in names:
            if name not in kwargs:
                default = VariableTracker.build(tx, defaults[name])
                _guard(tx, self, "_field_defaults", default, name)
        return made

    return guarding


if torch_version() < (2, 13):
    _class = user_defined.UserDefinedClassVariable
    hooks.ON_DYNAMO.replace(_class, "var_getattr", _guarding_attributes)
    hooks.ON_DYNAMO.replace(_class, "call_function", _guarding_defaults)
