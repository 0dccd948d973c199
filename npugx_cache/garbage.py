"""Frees what a compile leaves in reference cycles, such as the tensors of the call.

Dynamo's record of a trace, the tracebacks of exceptions that a trace raises and catches, and the
frames below the first import of Dynamo lie in cycles. Until Python collects its oldest objects,
which a server may have switched off, they would keep a worker's memory, and a capture of the next
call would be made for other addresses.
"""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def freed() -> Iterator[None]:
    """Collect the garbage that is made inside, at the end.

    All objects that are made inside stay in the youngest generation, because automatic collection
    is off: to collect them, nothing older is looked at.

    After `gc.freeze()`, as servers call it before they fork, the objects of the process can't be
    found, and a trace has to find the functions whose code it went through. So the objects are
    thawed inside, and frozen again.
    """
    enabled, frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    if frozen:
        gc.unfreeze()
    try:
        yield
    finally:
        gc.collect(2 if frozen else 0)
        if frozen:
            gc.freeze()
        if enabled:
            gc.enable()
