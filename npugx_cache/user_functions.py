"""The digest of a custom pass or a decomposition: a user function that shapes a graph.

The digest covers the code of the function, what the function captures, the user functions that it
reaches, and the plain values of the globals that these read. It uses neither `repr` nor `id`: two
closures with different values are two functions, and one function has the same digest in every
process. A callable object names itself by a method `uuid()`, as torch's CustomGraphPass does.
"""

from __future__ import annotations

import types
from functools import partial
from typing import TYPE_CHECKING, Any

from npugx_cache._compat import runtime
from npugx_cache.errors import OptionError
from npugx_cache.portable import NotPortable, digest, encode, unwrap
from npugx_cache.source import names_in, reachable_functions, reachable_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def function_digest(function: Callable[..., Any]) -> str:
    """Raises NotPortable for a function with something in it that has no form elsewhere."""
    named = getattr(function, "uuid", None)
    if callable(named):
        return digest([repr(encode(named()))])
    inner = unwrap(function)
    if (
        isinstance(function, types.BuiltinFunctionType)
        or runtime.operator_name(function) is not None
    ):
        return digest([repr(encode(function))])
    if not isinstance(function, (types.FunctionType, partial)):
        kind = type(function).__qualname__
        raise NotPortable(f"a {kind} has state: give it a method uuid() that names it")
    if not isinstance(inner, types.FunctionType):
        return digest([repr(encode(function))])
    return digest([repr(encode(function)), reachable_hash(inner), *_values(inner)])


def check_function(what: str, function: Callable[..., Any]) -> None:
    """Raises OptionError for a function that has no digest."""
    try:
        function_digest(function)
    except NotPortable as error:
        raise OptionError(f"{what} can't be part of a key: {error}") from None


def _values(function: types.FunctionType) -> Iterator[str]:
    """Captured values, those of the function itself must have a form, and globals that it reads.

    What libraries that it calls capture counts by its type where it has no form.
    """
    for each in reachable_functions(function):
        text = encode if each is function else _plain
        for name, cell in zip(each.__code__.co_freevars, each.__closure__ or (), strict=True):
            try:
                yield f"{name}={text(cell.cell_contents)!r}"
            except ValueError:  # not filled yet
                continue
        for name in sorted(set(names_in(each.__code__))):
            if name in each.__globals__:
                yield f"{name}={_plain(each.__globals__[name])}"


def _plain(value: object) -> str:
    try:
        return repr(encode(value))
    except NotPortable:  # a logger, a namespace of operators
        return type(value).__qualname__
