"""Looks at autocast objects that existed before the call, as in `@torch.autocast(...)`.

Dynamo knows the settings of such an object, and enters a new context with them. Python calls the
methods of the object's class. The object remembers what was set before it was entered: if it is
entered a second time inside itself, it forgets the first, and leaves the inner settings behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.trace import tracing
from npugx_cache.trace.observe import observation
from npugx_cache.trace.observe.unkept_calls import NotKept

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder

KNOWN = (torch.autocast, torch.cuda.amp.autocast, vars(torch.cpu.amp)["autocast"])
FIELDS = ("device", "fast_dtype", "_enabled", "_cache_enabled")
"""What a trace reads from an autocast object."""


_TWICE = "an autocast object is entered inside itself"


class _Entered:
    """The objects that the trace has entered and not left, with Dynamo's output.

    Dynamo begins a trace anew, with another output, when it has to know more from the start.
    """

    def __init__(self) -> None:
        self.objects: list[tuple[Any, object]] = []


@observation.around
def entering(recorder: Recorder, enter: Callable[..., Any], variable: Any, tx: Any) -> Any:
    if variable.source is not None:
        found = tracing.value_at(tx, variable.source)
        entered = recorder.state(_Entered).objects
        if type(found) not in KNOWN:
            recorder.refuse(f"a {type(found).__qualname__} is entered as if it were torch.autocast")
        if any(output is tx.output and each is found for output, each in entered):
            recorder.refuse(_TWICE)
            raise NotKept(_TWICE)  # because Dynamo fails at the second exit, in its own words
        entered.append((tx.output, found))
    return enter(variable, tx)


@observation.around
def leaving(
    recorder: Recorder, leave: Callable[..., Any], variable: Any, tx: Any, *args: Any
) -> Any:
    if variable.source is not None:
        recorder.state(_Entered).objects.pop()
    return leave(variable, tx, *args)
