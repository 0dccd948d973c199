"""Writes a value as a text that is the same in every process, as far as the value allows.

Such texts stand in keys and in hashes of classes. `repr` alone walks sets in the order of their
hashes, which differ from process to process, and names functions by their addresses.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from typing import Any

from npugx_cache.portable.pinned import is_covered_module

_MAX_DEPTH = 24


def stable_text(value: Any, depth: int = 0) -> str:
    """`repr` of the value, with sets sorted, at any depth.

    A function of Python or torch is told by its name, because a version in the key says what it
    does. Any other function, and an object whose `repr` holds its address, gives another text in
    each process: a miss, which is right where nobody knows whether two objects are equal.
    """
    if depth > _MAX_DEPTH:
        return repr(value)
    kind = type(value)
    if isinstance(value, (set, frozenset)):
        return _text_of_container(kind, sorted(stable_text(each, depth + 1) for each in value))
    if isinstance(value, (list, tuple)):
        return _text_of_container(kind, [stable_text(each, depth + 1) for each in value])
    if isinstance(value, dict):
        rows = ((stable_text(k, depth + 1), stable_text(v, depth + 1)) for k, v in value.items())
        return _text_of_container(kind, [f"{key}: {text}" for key, text in rows])
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(value) if field.repr]
        rows = ((name, stable_text(getattr(value, name, None), depth + 1)) for name in names)
        return _text_of_container(kind, [f"{name}={text}" for name, text in rows])
    if isinstance(value, types.FunctionType) and _is_pinned(value):
        return f"<function {value.__module__}.{value.__qualname__}>"
    return repr(value)


def _text_of_container(kind: type, texts: list[str]) -> str:
    inner = ", ".join(texts)
    if kind not in _BRACKETS or (kind is set and not texts):
        return f"{kind.__qualname__}({inner})"
    opening, closing = _BRACKETS[kind]
    return f"{opening}{inner}{',' if kind is tuple and len(texts) == 1 else ''}{closing}"


_BRACKETS = {list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}"), set: ("{", "}")}


def _is_pinned(function: types.FunctionType) -> bool:
    module = function.__module__
    if type(module) is not str or not is_covered_module(module):
        return False
    found: Any = sys.modules.get(module)
    for name in function.__qualname__.split("."):  # a method, such as logging.Logger.debug
        found = getattr(found, name, None)
    return found is function
