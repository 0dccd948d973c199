"""Watches what Dynamo takes for constants of an enumeration.

It lets Python look for a member, once and for all. For a value that no member has, Python calls the
`_missing_` of the enumeration, which is not traced. The code of `_missing_` and the members are a
condition; what else it reads has none. Beside a tensor or a symbolic size, Dynamo takes a member
that is a number for the number, and does not ask its own operators; in a comparison it takes the
member for no number at all. Importing this module loads the compiler.
"""

from __future__ import annotations

import dis
import enum
from typing import TYPE_CHECKING, Any

from npugx_cache.conditions.source_facts import (
    SPECIAL,
    captured_values,
    functions_of_method,
    missing,
    names_in,
)
from npugx_cache.portable import is_covered_class
from npugx_cache.trace.observe.observation import Question
from npugx_cache.trace.stack_value import look_behind

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable

    from npugx_cache.trace.observe.observation import Recorder


def note_call(recorder: Recorder, cls: type, args: list[Any]) -> None:
    if not isinstance(cls, enum.EnumMeta) or is_covered_class(cls):
        return
    recorder.note(Question.MEMBERS, cls)
    own = missing(cls)
    if own is None or (len(args) == 1 and _has_member(cls, args[0])):
        return
    functions = functions_of_method(own)
    if len(functions) != 1 or _reads_more(functions[0], cls):
        recorder.refuse(f"what the _missing_ of {cls.__qualname__} reads has no guard")


def is_held(member: enum.Enum, name: str) -> bool:
    """Whether a condition holds what an attribute of a member gives: its value, or a method."""
    if name in _TOLD_BY_MEMBERS or name in ("name", "value"):
        return True
    if name in vars(member):
        return False
    holder = next((each for each in type(member).__mro__ if name in vars(each)), None)
    if holder is None or is_covered_class(holder):
        return True
    return hasattr(type(vars(holder)[name]), "__get__")


def refuse_as_number(recorder: Recorder, variable: Any) -> None:
    """Of a member that goes into the graph."""
    if isinstance(variable.value, enum.Enum) and isinstance(variable.value, int):
        refuse_own_operators(recorder, type(variable.value))


def refuse_comparison(recorder: Recorder, operands: Iterable[Any]) -> None:
    """Of a tensor or a symbolic size with a member: Dynamo says that no number is equal to it."""
    compared = [look_behind(each) for each in operands]
    members = [each.value for each in compared if isinstance(each.value, enum.Enum)]
    if not members or not any(each.is_of_graph for each in compared):
        return
    for value in members:
        if isinstance(value, (int, float)):
            recorder.refuse(f"a {type(value).__qualname__} is compared as if it were no number")


def refuse_own_operators(recorder: Recorder, cls: type) -> None:
    """Refuse a whole number of a class of user code that has an operator of its own."""
    bodies = (vars(base) for base in cls.__mro__ if not is_covered_class(base))
    own = next((name for body in bodies for name in sorted(_OF_NUMBERS & body.keys())), None)
    if own is not None:
        recorder.refuse(f"a {cls.__qualname__} is traced as a number without its {own}")


_OF_NUMBERS = frozenset(
    name
    for name in SPECIAL - {"__repr__", "__str__", "__format__", "__new__", "__hash__"}
    if name in vars(int) or (name.startswith("__i") and f"__{name[3:]}" in vars(int))
)
"""The operators of whole numbers, and those in place."""


def _has_member(cls: enum.EnumMeta, given: Any) -> bool:
    """Whether a value is that of a member, so that Python does not ask `_missing_`."""
    if not given.is_python_constant():
        return True  # Dynamo does not ask Python
    value = given.as_python_constant()
    try:
        return value in cls._value2member_map_
    except TypeError:  # it has no hash: Python compares it with each
        return False


def _reads_more(function: types.FunctionType, cls: type) -> bool:
    """Whether a `_missing_` may read more than its arguments, builtins and the members' values."""
    code, members = function.__code__, vars(cls)["_member_map_"]
    imports = any(each.opname == "IMPORT_NAME" for each in dis.get_instructions(code))
    bodies = [vars(base) for base in cls.__mro__ if not is_covered_class(base)]
    named = {name for body in bodies for name in body}
    named |= {name for member in members.values() for name in vars(member)}
    named -= {*members, *_TOLD_BY_MEMBERS}
    if sum("_missing_" in body for body in bodies) == 1:
        named.remove("_missing_")  # `super()._missing_` is Python's
    reads = not (named | function.__globals__.keys()).isdisjoint(names_in(code))
    return imports or reads or bool(captured_values(function))


_TOLD_BY_MEMBERS = frozenset(
    {
        *("_value_", "_name_", "_sort_order_", "__class__"),
        *("_member_map_", "_member_names_", "_value2member_map_"),
    }
)
"""Attributes of members and their class about which the condition on the members says all."""
