"""Decides whether user code that shapes a graph untraced may depend on the index of a device.

Such code is a fake implementation, a decomposition or a pass. If it computes something from an
index, only the resulting graph shows that. So we accept only code that has no way to an index: it
uses nothing but sizes, dtypes and factories, and passes on the device of its arguments. Any other
code ties the entry to the index.
"""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator

    from npugx_cache.trace.source_facts import Owners

_GLOBALS = frozenset({"torch", "len", "list", "max", "min", "range", "tuple"})
_FACTORIES = frozenset({"empty", "full", "ones", "zeros", "empty_strided"})
_ATTRIBUTES = frozenset(
    {
        *_FACTORIES,
        *(f"new_{name}" for name in _FACTORIES),
        *("empty_like", "full_like", "ones_like", "zeros_like"),
        *("clone", "contiguous", "detach", "expand", "flatten", "permute", "reshape", "squeeze"),
        *("transpose", "unsqueeze", "view", "is_contiguous"),
        *("dim", "dtype", "ndim", "numel", "shape", "size", "stride"),
        *("bfloat16", "bool", "float16", "float32", "float64", "int8", "int32", "int64", "uint8"),
        *("half", "float", "double", "int", "long"),
    }
)
_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL"})
_OPENS = frozenset(
    {
        *("LOAD_DEREF", "LOAD_CLASSDEREF", "IMPORT_NAME", "IMPORT_FROM", "BEFORE_WITH"),
        "CALL_FUNCTION_EX",  # arguments whose names don't show
    }
)
_TEXTS = frozenset({"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "BUILD_STRING"})
_PUSHES = frozenset({"LOAD_FAST", "LOAD_CONST", "LOAD_GLOBAL"})


def may_name_index(code: types.CodeType, owners: Owners) -> bool:
    """Whether code may name the index of a device or look at one: in doubt, it may."""
    instructions = list(dis.get_instructions(code))
    if any(i.opname in _OPENS | _TEXTS for i in instructions) or _has_default_device(code, owners):
        return True
    if any(isinstance(each, str) and ":" in each for each in code.co_consts):
        return True
    if any(hasattr(each, "co_code") for each in code.co_consts):
        return True
    handed_on = 0
    for position, each in enumerate(instructions):
        if each.argval == "device" and each.opname in _READS:
            if not _is_handed_on(code, instructions, position):
                return True
            handed_on += 1
        elif not _is_harmless(each):
            return True
    return handed_on != sum(list(names).count("device") for names in _keywords(code))


def _is_harmless(instruction: dis.Instruction) -> bool:
    if instruction.opname == "LOAD_GLOBAL":
        return instruction.argval in _GLOBALS
    if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return instruction.argval in _ATTRIBUTES
    return not instruction.opname.endswith(("_NAME", "_ATTR"))


def _is_handed_on(code: types.CodeType, instructions: list[dis.Instruction], position: int) -> bool:
    """Whether a variable's device becomes the argument `device`, as Python 3.11 and 3.12 do it."""
    if instructions[position - 1].opname != "LOAD_FAST":
        return False
    above = 0
    for each in instructions[position + 1 :]:
        if each.opname == "KW_NAMES":
            names = code.co_consts[each.arg or 0]
            return above < len(names) and names[len(names) - 1 - above] == "device"
        if each.opname in _PUSHES:
            above += 1
        elif each.opname != "LOAD_ATTR":
            return False
    return False


def _keywords(code: types.CodeType) -> Iterator[tuple[object, ...]]:
    yield from (each for each in code.co_consts if isinstance(each, tuple))


def _has_default_device(code: types.CodeType, owners: Owners) -> bool:
    """Whether an argument may be something of the user's that has a device."""
    if "device" not in code.co_names:
        return False
    functions = owners.get(id(code), [])
    defaults = [
        value
        for function in functions
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    ]
    return not functions or any(hasattr(value, "device") for value in defaults)
