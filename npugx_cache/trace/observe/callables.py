"""What Dynamo reads of callables without a guard.

- annotations, and what `inspect.signature` gave: Dynamo skips their guards as too many;
- attributes of a `functools.partial`, of which Dynamo says that there are none, and a class derived
  from it, which Dynamo takes for partial itself: refused;
- attributes of what wraps a function, such as `lru_cache`: Dynamo asks the function; refused.

Importing this module loads the compiler.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from npugx_cache.portable import is_covered_class
from npugx_cache.trace.observe import observation

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder


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
    if isinstance(value, functools.partial) and not is_covered_class(cls):
        recorder.refuse(f"{cls.__qualname__} is traced as functools.partial itself")


def unskipping(skipping: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give what is read the guards that it would have had."""

    def source_for(source: Any) -> Any:
        return skipping(source) if observation.current() is None else source

    return source_for
