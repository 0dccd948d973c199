"""Lets Dynamo forget what it remembers of classes.

Dynamo asks a class once in a process which special methods the class has, such as `__bool__`, and
keeps the answer. If somebody adds one later, the next trace is for the class as it was.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from npugx_cache.trace.observe.replacements import DYNAMO, dynamo_modules

if TYPE_CHECKING:
    from collections.abc import Iterator

_CACHE: Any = type(functools.lru_cache(len))
_VARIABLES = f"{DYNAMO}.variables."
"""What remembers an answer in these modules remembers it about a class of the traced code."""
_FIELDS = f"{DYNAMO}.utils", "namedtuple_fields"
"""Remembers the fields of classes of named tuples."""


def forget() -> None:
    """Before a trace: what is asked in the trace is asked anew."""
    for cache in _caches():
        cache.cache_clear()


def _caches() -> Iterator[Any]:
    """The functions of Dynamo's that remember an answer about an argument."""
    for module in dynamo_modules():
        for name, value in vars(module).copy().items():
            if type(value) is not _CACHE or value.__module__ != module.__name__:
                continue
            is_of_classes = module.__name__.startswith(_VARIABLES)
            is_of_classes |= (module.__name__, name) == _FIELDS
            if is_of_classes and _takes_arguments(value):
                yield value


def _takes_arguments(cache: Any) -> bool:
    function = cache.__wrapped__
    return not isinstance(function, types.FunctionType) or function.__code__.co_argcount > 0
