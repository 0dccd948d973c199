"""Finds code by module and qualified name, also behind descriptors and decorators."""

from __future__ import annotations

import sys
import types
from typing import Any

from npugx_cache.portable.values import MAX_DEPTH, NotPortable

_MAX_CHAIN = 16


def unwrap(member: object) -> object:
    """The plain function behind a descriptor, partial or `functools.wraps` decoration."""
    for _ in range(MAX_DEPTH):
        if isinstance(member, types.FunctionType):
            return member
        for attribute in ("__func__", "fget", "__wrapped__", "func"):
            inner = getattr(member, attribute, None)
            if inner is not None:
                member = inner
                break
        else:
            return member
    return member


def look_up(module: str, name: str) -> object:
    found: Any = sys.modules.get(module)
    if found is None:
        raise NotPortable(f"module {module} is not imported in this process")
    for part in name.split("."):
        # Not getattr: a property or a staticmethod must be found as it stands in its class.
        owners = getattr(found, "__mro__", (found,))
        for owner in owners:
            if part in vars(owner):
                found = vars(owner)[part]
                break
        else:
            raise NotPortable(f"{module}.{name} does not exist")
    return found


def function_chain(found: object) -> list[types.FunctionType]:
    """The function behind an object and the functions that its decorators wrap."""
    chain: list[types.FunctionType] = []
    waiting = [found]
    while waiting and len(chain) < _MAX_CHAIN:
        function = unwrap(waiting.pop(0))
        if not isinstance(function, types.FunctionType) or function in chain:
            continue
        chain.append(function)
        waiting += [getattr(function, "__wrapped__", None)]
        waiting += [contents(cell) for cell in function.__closure__ or ()]
    return chain


def contents(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
