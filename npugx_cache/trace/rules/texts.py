"""Rules about texts of objects: a text that holds an address is another one in each process."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from npugx_cache.trace.stack_value import look_behind, type_of

if TYPE_CHECKING:
    from collections.abc import Iterable

MAKERS = (repr, str, format, ascii)
METHODS = frozenset({"__repr__", "__str__", "__format__"})
_WITH_ADDRESS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.CodeType)
_MAX_DEPTH = 8


def obstacle(values: Iterable[Any]) -> str | None:
    """Why the text of one of these values is not the same in another process, or None."""
    for each in values:
        kind = _nameless(each, _MAX_DEPTH)
        if kind is not None:
            return f"the text of a {kind.__qualname__} holds its address"
    return None


def _nameless(variable: Any, depth: int) -> type | None:
    """The type of a value, or of a part of it, whose text Python makes of the address."""
    found = look_behind(variable)
    kind = type_of(found)
    if kind is not None and _is_shown_by_address(kind):
        return kind
    items = vars(found.variable).get("items")
    parts = items.values() if isinstance(items, dict) else items
    if depth and isinstance(parts, (list, tuple, type({}.values()))):
        inner = (_nameless(part, depth - 1) for part in parts if hasattr(part, "__dict__"))
        return next((each for each in inner if each is not None), None)
    return None


def _is_shown_by_address(kind: type) -> bool:
    if issubclass(kind, _WITH_ADDRESS):
        return True
    members: Any = kind
    return members.__repr__ is object.__repr__ and members.__str__ is object.__str__
