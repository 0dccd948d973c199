"""Where torch before 2.13 treats objects otherwise than Python does. Checked on torch 2.11.

Such a call is refused: `self.y = 1` does not run the setter of a property `y`, the field of a
namedtuple is read by its position though the class has a property of its name, in `base + derived`
the `__radd__` of the derived class is not asked first, a subclass of str equals no str, and what
`move_to_end` did to an OrderedDict from outside is lost. Importing this module loads the compiler.
"""

from __future__ import annotations

import collections
import enum
import inspect
import operator
from typing import TYPE_CHECKING, Any

from torch._dynamo import symbolic_convert
from torch._dynamo.variables import builder, builtin, dicts, lists, user_defined

from npugx_cache._compat import hooks, unguarded
from npugx_cache._compat.runtime import torch_version

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIELD: type = vars(collections)["_tuplegetter"]
"""What a class made by `namedtuple` has for each field."""


def _note_set(
    asked: unguarded.Asked,
    variable: Any,
    tx: Any,
    name: Any,
    value: Any,
    directly_update_dict: bool = False,
) -> None:
    del tx, value
    if not directly_update_dict and name.is_python_constant():
        key = name.as_python_constant()
        if isinstance(inspect.getattr_static(variable.python_type(), key, None), property):
            asked.refuse(f"with this torch the setter of the property {key} is not run")


_NUMBERS_AND_TEXTS = (int, float, complex, str, bytes)
_EXACT = frozenset({*_NUMBERS_AND_TEXTS, bool})


def _note_derived(asked: unguarded.Asked, builds: Any, value: object) -> None:
    del builds
    cls = type(value)
    if cls in _EXACT or isinstance(value, enum.Enum) or cls.__module__ == "numpy":
        return
    if isinstance(value, _NUMBERS_AND_TEXTS):
        asked.refuse(f"with this torch {cls.__qualname__} is not compared as Python does")


def _note_moved(
    asked: unguarded.Asked, variable: Any, tx: Any, name: str, *_: Any, **__: Any
) -> None:
    del tx
    if name == "move_to_end" and variable.source:
        asked.refuse("with this torch an OrderedDict keeps its order after move_to_end")


def _note_field(asked: unguarded.Asked, variable: Any, tx: Any, name: str) -> None:
    del tx
    cls = variable.python_type()
    if name in variable.fields() and type(inspect.getattr_static(cls, name, None)) is not _FIELD:
        asked.refuse(f"with this torch the field {name} of {cls.__qualname__} is not looked up")


_COMPARISONS = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
_ARITHMETIC = (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift",
    "and_", "xor", "or_",
)  # fmt: skip
_REFLECTED = {
    **{getattr(operator, left): f"__{right}__" for left, right in _COMPARISONS.items()},
    **{getattr(operator, name): f"__r{name.strip('_')}__" for name in _ARITHMETIC},
    **{getattr(operator, f"i{name.strip('_')}"): f"__r{name.strip('_')}__" for name in _ARITHMETIC},
    divmod: "__rdivmod__",
    pow: "__rpow__",
}


def _note_operator(
    asked: unguarded.Asked, variable: Any, tx: Any, args: Sequence[Any], *_: Any
) -> None:
    """Of a class and one derived from it, Python asks the latter first, if it has its own."""
    del tx
    name = _REFLECTED.get(variable.fn)
    if name is None or len(args) != 2:
        return
    left, right = (each.realize() for each in args)
    if not isinstance(right, user_defined.UserDefinedObjectVariable):
        return
    base, derived = left.python_type(), right.python_type()
    if derived is not base and issubclass(derived, base):
        own = inspect.getattr_static(derived, name, None)
        if own is not inspect.getattr_static(base, name, None):
            asked.refuse(f"with this torch {derived.__qualname__}.{name} is not asked first")


def _put_in_place() -> None:
    unguarded.note_before(
        user_defined.UserDefinedObjectVariable, "method_setattr_standard", _note_set
    )
    unguarded.note_before(builder.VariableBuilder, "_wrap", _note_derived)
    unguarded.note_before(dicts.ConstDictVariable, "call_method", _note_moved)
    unguarded.note_before(vars(lists)["NamedTupleVariable"], "var_getattr", _note_field)
    unguarded.note_before(builtin.BuiltinVariable, "call_function", _note_operator)
    handlers = symbolic_convert.compare_op_handlers
    for name, handler in handlers.items():
        if inspect.ismethod(handler):  # bound before: without what is noted in a trace of ours
            hooks.ON_DYNAMO.replace(handlers, name, _bound_again)


def _bound_again(method: Any) -> Any:
    return getattr(method.__self__, method.__name__)


if torch_version() < (2, 13):
    _put_in_place()
