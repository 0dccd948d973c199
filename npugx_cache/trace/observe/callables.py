"""What Dynamo reads of modules and callables without a guard.

- `hasattr`, and an attribute that is not there where the code catches the AttributeError, also of
  other objects;
- annotations, and what `inspect.signature` gave: Dynamo skips their guards as too many;
- attributes of a `functools.partial`, of which Dynamo says that there are none, and a class derived
  from it, which Dynamo takes for partial itself: refused;
- attributes of what wraps a function, such as `lru_cache`: Dynamo asks the function; refused.

Importing this module loads the compiler.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from torch._dynamo import exc
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource

from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.trace.observe import objects

if TYPE_CHECKING:
    from collections.abc import Callable


def _install_hasattr(source: Any, name: str) -> None:
    if "attr" in inspect.signature(GuardBuilder.HASATTR).parameters:  # since torch 2.12
        kind = functools.partial(GuardBuilder.HASATTR, attr=name)
        install_guard(source.make_guard(kind))
    else:
        install_guard(AttrSource(source, name).make_guard(GuardBuilder.HASATTR))


def guard_hasattr(asked: objects.Asked, variable: Any, tx: Any, name: str) -> None:
    del asked, tx
    if variable.source:
        _install_hasattr(variable.source, name)


def _object(variable: Any) -> Any:
    names = ("fn", "wrapper_obj", "value")
    return next(getattr(variable, name) for name in names if hasattr(variable, name))


def guarding_absence(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarding(self: Any, tx: Any, name: str) -> Any:
        try:
            return method(self, tx, name)
        except exc.ObservedAttributeError:
            if objects.asked() is not None and self.source and not hasattr(_object(self), name):
                _install_hasattr(self.source, name)
            raise

    return guarding


_SLOTS = frozenset({"func", "args", "keywords"})


def refuse_attribute(asked: objects.Asked, variable: Any, tx: Any, name: str) -> None:
    del tx
    if variable.source and name not in _SLOTS:
        asked.refuse(f"the attribute {name} of a functools.partial is not traced")


def refuse_wrappers(asked: objects.Asked, variable: Any, *given: Any) -> None:
    name = given[-1]
    if name != variable.attr_to_trace:
        asked.refuse(f"the attribute {name} of what wraps a function is not traced")


def refuse_derived(asked: objects.Asked, builds: Any, value: object) -> None:
    del builds
    cls = type(value)
    if isinstance(value, functools.partial) and not is_covered_module(cls.__module__):
        asked.refuse(f"{cls.__qualname__} is traced as functools.partial itself")


def unskipping(skipping: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give what is read the guards that it would have had."""

    def source_for(source: Any) -> Any:
        return skipping(source) if objects.asked() is None else source

    return source_for
