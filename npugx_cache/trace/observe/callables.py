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
from typing import TYPE_CHECKING, Any

from torch._dynamo import exc

from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.trace.observe import observation, torch_guards

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder


def guard_hasattr(recorder: Recorder, variable: Any, tx: Any, name: str) -> None:
    del recorder, tx
    torch_guards.guard_attribute(variable, name)


def _object(variable: Any) -> Any:
    names = ("fn", "wrapper_obj", "value")
    return next(getattr(variable, name) for name in names if hasattr(variable, name))


def guarding_absence(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarding(self: Any, tx: Any, name: str) -> Any:
        try:
            return method(self, tx, name)
        except exc.ObservedAttributeError:
            ours = observation.current() is not None and self.source
            if ours and not hasattr(_object(self), name):
                torch_guards.guard_attribute(self, name)
            raise

    return guarding


_SLOTS = frozenset({"func", "args", "keywords"})


def refuse_attribute(recorder: Recorder, variable: Any, tx: Any, name: str) -> None:
    del tx
    if variable.source and name not in _SLOTS:
        recorder.refuse(f"the attribute {name} of a functools.partial is not traced")


def refuse_wrappers(recorder: Recorder, variable: Any, *given: Any) -> None:
    name = given[-1]
    if name != variable.attr_to_trace:
        recorder.refuse(f"the attribute {name} of what wraps a function is not traced")


def refuse_derived(recorder: Recorder, builds: Any, value: object) -> None:
    del builds
    cls = type(value)
    if isinstance(value, functools.partial) and not is_covered_module(cls.__module__):
        recorder.refuse(f"{cls.__qualname__} is traced as functools.partial itself")


def unskipping(skipping: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give what is read the guards that it would have had."""

    def source_for(source: Any) -> Any:
        return skipping(source) if observation.current() is None else source

    return source_for
