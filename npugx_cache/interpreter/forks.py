"""Makes locks usable in a forked child.

A thread that held a lock in the parent does not exist in the child and never releases the lock.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Lock: TypeAlias = Any
"""An RLock or a Lock: both are functions, and their types have no public name."""

_OWNERS: dict[weakref.ref[object], tuple[str, ...]] = {}


def survive_forks(owner: object, *names: str) -> None:
    """Register locks of `owner`, an object or a module, to be replaced in a forked child if held.

    `names` are attributes of the owner; each is a lock or a dict of locks. A lock that the forking
    thread can't take in the child is held by a thread that exists only in the parent, so whoever
    waited for the lock would hang for ever. A new `RLock` takes its place; a dict drops the lock.
    """
    _OWNERS[weakref.ref(owner, _forget)] = names


class NamedLocks:
    """A re-entrant lock per name, made when it is first asked for."""

    def __init__(self) -> None:
        self._table = threading.RLock()
        self._locks: dict[str, Lock] = {}
        survive_forks(self, "_table", "_locks")

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        with self._table:
            lock = self._locks.setdefault(name, threading.RLock())
        with lock:
            yield


def _forget(reference: weakref.ref[object]) -> None:
    _OWNERS.pop(reference, None)


def _after_fork() -> None:
    for reference, names in list(_OWNERS.items()):
        owner = reference()
        for name in names if owner is not None else ():
            held = getattr(owner, name)
            if isinstance(held, dict):
                setattr(owner, name, {key: lock for key, lock in held.items() if _is_free(lock)})
            elif not _is_free(held):
                setattr(owner, name, threading.RLock())


def _is_free(lock: Lock) -> bool:
    """Whether the thread that this process has can take a lock."""
    taken: bool = lock.acquire(blocking=False)
    if taken:
        lock.release()
    return taken


os.register_at_fork(after_in_child=_after_fork)
