"""Writes what stores count and journals note: some seconds later, and when the process ends.

To write them only at exit is not enough. A server lives for days and is then killed, and until then
a cleaner would take its entries for unused. Children of multiprocessing end without running atexit,
so they get a finalizer.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:

    class Flushed(Protocol):
        def flush(self) -> None: ...

    class Opened(Flushed, Protocol):
        def settle(self) -> None: ...
        def forget_parent(self) -> None: ...


SOON = 10.0
_open_stores: weakref.WeakSet[Opened] = weakref.WeakSet()
# Strong references, because the hits of a store that nobody else refers to must be written too.
_with_hits: set[Flushed] = set()
_waiting: list[threading.Timer] = []
_finalized_in: set[int] = set()


def note_open_store(store: Opened) -> None:
    _open_stores.add(store)


def has_hits(store: Flushed) -> None:
    """Schedule a flush. Called by a hit, once between two flushes of the store, and by a miss."""
    _with_hits.add(store)
    util = sys.modules.get("multiprocessing.util")
    if util is not None and os.getpid() not in _finalized_in:
        _finalized_in.add(os.getpid())
        util.Finalize(None, _flush_all, exitpriority=0)
    if not _waiting:
        timer = threading.Timer(SOON, _flush_all)
        timer.daemon = True
        _waiting.append(timer)  # before the start, because the timer begins by clearing the list
        try:
            timer.start()
        except RuntimeError:  # an interpreter that ends starts no thread; atexit flushes then
            _waiting.clear()


def note_flush(store: Flushed) -> None:
    _with_hits.discard(store)


def _flush_all() -> None:
    _waiting.clear()
    for store in list(_with_hits):
        with contextlib.suppress(Exception):
            store.flush()


@atexit.register
def _at_exit() -> None:
    _flush_all()
    for store in list(_open_stores):
        store.settle()


def _after_fork() -> None:
    _with_hits.clear()
    _waiting.clear()  # the timer's thread exists only in the parent
    for store in list(_open_stores):
        store.forget_parent()


os.register_at_fork(after_in_child=_after_fork)
