"""Rules about instructions that ask special methods: Python code that Python runs, Dynamo runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.portable import is_covered_class
from npugx_cache.trace.stack_value import codes_of, look_behind, type_of

if TYPE_CHECKING:
    import types
    from collections.abc import Collection, Iterable, Iterator


def obstacle(
    operands: Iterable[Any], names: tuple[str, ...], started: Collection[types.CodeType]
) -> str | None:
    """Why Dynamo did not do what an instruction does: user code for it was not interpreted.

    One method is enough: Python asks the other operand only if the first one has no answer.
    `started` is the code that Dynamo interpreted during the instruction.
    """
    methods = [method for operand in operands for method in _methods(operand, names)]
    if methods and not any(code in started for _, codes in methods for code in codes):
        return f"npugx_cache has no rule for {methods[0][0]}, which torch does not look into"
    return None


def _methods(operand: Any, names: tuple[str, ...]) -> Iterator[tuple[str, list[types.CodeType]]]:
    """The methods in Python code that a class of user code has for an instruction."""
    found = look_behind(operand)
    kind = type_of(found)
    asked = [(kind, name) for name in names if name != "__class_getitem__"]
    if isinstance(found.value, type) and "__class_getitem__" in names:
        asked.append((found.value, "__class_getitem__"))
    for cls, name in asked:
        holder = next((each for each in getattr(cls, "__mro__", ()) if name in vars(each)), None)
        if holder is not None and not is_covered_class(holder):
            codes = codes_of(vars(holder)[name])
            if codes:
                yield f"{holder.__qualname__}.{name}", codes
