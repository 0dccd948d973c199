"""Rules about instructions that ask special methods: Python code that Python runs, Dynamo runs."""

from __future__ import annotations

import enum
import inspect
import types
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.portable import is_covered_class
from npugx_cache.trace.rules import by_value, pure
from npugx_cache.trace.stack_value import (
    CONSTANTS,
    NONE,
    StackValue,
    classes_of,
    code_made_here,
    codes_of,
    look_behind,
    type_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


def obstacle(
    operands: tuple[Any, ...],
    asked: tuple[tuple[str, ...], ...],
    started: Collection[types.CodeType],
) -> str | None:
    """Why Dynamo did not do what an instruction does: user code for it was not interpreted.

    `asked` names the special methods of each operand. One method is enough: Python asks the other
    operand only if the first one has no answer. `started` is the code that Dynamo interpreted
    during the instruction.
    """
    for operand, names in zip(operands, asked, strict=True):
        if (reason := by_value.obstacle(operand, names)) is not None:
            return reason
        if "__contains__" in names and (reason := by_value.obstacle_of_search(*operands)):
            return reason
    pairs = zip(operands, asked, strict=True)
    methods = [method for operand, names in pairs for method in _methods(operand, names)]
    slices = (each for each in operands if type_of(look_behind(each)) is slice)
    if reason := obstacle_of_values(by_value.parts(slices), ("__index__",), started):
        return reason
    if reason := _not_interpreted(methods, started):
        return reason
    if any("__contains__" in names for names in asked):
        return obstacle_of_values(by_value.parts(operands), ("__eq__",), started)
    return None


def obstacle_of_values(
    values: Iterable[Any], names: tuple[str, ...], started: Collection[types.CodeType]
) -> str | None:
    """The same for code that is not written in Python, which may ask each value for any name.

    Dynamo takes functions, classes and members of enumerations for constants, and runs such code
    for real, as `max(items, key=score)` before torch 2.15. Other objects it does not give to the
    code.
    """
    methods: list[tuple[str, list[types.CodeType]]] = []
    for each in values:
        found = look_behind(each)
        if isinstance(found.value, (enum.Enum, type)):
            methods += _methods(each, names)
        codes = _codes_called(found) if "__call__" in names else []
        functions = [("a function that it is given", codes)] if codes else []
        if reason := _not_interpreted(functions, started):
            return reason
    return _not_interpreted(methods, started)


def _codes_called(found: StackValue) -> list[types.CodeType]:
    """The code of the user's that a call of a value runs, or none."""
    if (code := code_made_here(found)) is not None:
        return [code]
    if isinstance(found.value, type):
        if is_covered_class(found.value):
            return []
        made = (inspect.getattr_static(found.value, name) for name in ("__new__", "__init__"))
        return [code for each in made for code in codes_of(each)]
    return [] if found.value is NONE else codes_of(found.value)


def _not_interpreted(
    methods: list[tuple[str, list[types.CodeType]]], started: Collection[types.CodeType]
) -> str | None:
    if methods and not any(code in started for _, codes in methods for code in codes):
        return f"npugx_cache has no rule for {methods[0][0]}, which torch does not look into"
    return None


def _methods(operand: Any, names: tuple[str, ...]) -> Iterator[tuple[str, list[types.CodeType]]]:
    """The methods that a class of user code has for an instruction, and the code of each."""
    if not names:
        return
    found = look_behind(operand)
    if type(found.value) in CONSTANTS:
        return
    kind = type_of(found)
    if by_value.is_of_python(kind) and not isinstance(found.value, type):
        return
    asked = [(kind, name) for name in names if name != "__class_getitem__"]
    if isinstance(found.value, type) and "__class_getitem__" in names:
        asked.append((found.value, "__class_getitem__"))
    for cls, name in asked:
        holder = next((each for each in getattr(cls, "__mro__", ()) if name in vars(each)), None)
        method = vars(holder)[name] if holder is not None else None
        if holder is None or method is None or isinstance(method, _WITHOUT_CODE):
            continue
        if not any(is_covered_class(each) for each in _holding(cls, name, method)):
            yield f"{holder.__qualname__}.{name}", codes_of(method)


def _holding(cls: type | None, name: str, method: object) -> Iterator[type]:
    """The classes that have this very method: a flag has those of `enum.Flag` in its own body."""
    classes = getattr(cls, "__mro__", ())
    return (each for each in classes if vars(each).get(name) is method)


_WITHOUT_CODE = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.BuiltinFunctionType,
    types.ClassMethodDescriptorType,
)
"""Methods of Python's own that a class of user code names again."""


def names_matched(names: Any) -> list[str]:
    """The attributes that a class pattern reads by their names: the third operand has them."""
    asked = vars(look_behind(names).variable)
    return [*(asked.get("value") or [look_behind(each).value for each in asked.get("items", ())])]


def obstacle_of_match(subject: Any, kind: Any, names: Any) -> str | None:
    """Why a class pattern reads of a tensor what its guard does not hold, or None.

    The operands of MATCH_CLASS: the subject, the class, and the names of the attributes.
    """
    del kind
    if torch.Tensor not in classes_of(look_behind(subject)):
        return None
    read = names_matched(names)
    unknown = next((name for name in read if name not in pure.TENSOR_ATTRIBUTES), None)
    return unknown and f"the attribute {unknown} of a tensor has no guard in a pattern"
