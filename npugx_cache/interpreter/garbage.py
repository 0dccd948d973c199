"""Frees what a compile leaves in reference cycles, such as the tensors of the call.

Dynamo's record of a trace, the tracebacks of exceptions that a trace raises and catches, and the
frames below the first import of Dynamo lie in cycles. Until Python collects its oldest objects,
which a server may have switched off, they would keep a worker's memory, and a capture of the next
call would be made for other addresses.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_switched_off_by: set[int] = set()
"""The threads inside `collect_at_end` that switched automatic collection off, by their idents."""


@contextlib.contextmanager
def collect_at_end() -> Iterator[None]:
    """Collect the garbage that is made inside, at the end.

    Automatic collection is off inside, in all threads, so that what is made inside stays in the
    youngest generation: at the end nothing older is looked at.

    Objects that `gc.freeze()` froze are thawed, and stay so: a trace finds the functions of its
    code among all objects, and can't find them among frozen ones. To freeze the objects again would
    keep alive for ever what other threads have in cycles at that moment.
    """
    here, was_on = threading.get_ident(), gc.isenabled()
    try:
        if was_on:
            _switched_off_by.add(here)
            gc.disable()
        gc.unfreeze()
        try:
            yield
        finally:
            gc.collect(0)
    finally:  # also where a signal handler raises after the collection
        if was_on:
            _switched_off_by.discard(here)
            gc.enable()


def _after_fork() -> None:
    """In the child there is no thread any more that would switch collection on again."""
    lost = _switched_off_by - {threading.get_ident()}
    if lost:
        _switched_off_by.difference_update(lost)
        gc.enable()


os.register_at_fork(after_in_child=_after_fork)
