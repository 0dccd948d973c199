"""The graphs of one function that are bound in this process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from npugx_cache.forks import survive_forks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npugx_cache.conditions.evaluate import Scope
    from npugx_cache.entry.restore import Specialisation


class Specialisations:
    """The graphs, newest hit first. Safe to use from several threads; `find` waits for no lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known: tuple[Specialisation, ...] = ()
        survive_forks(self, "_lock")

    def find(self, scope: Scope) -> Specialisation | None:
        """The graph that accepts a call, or None; that graph comes first from then on."""
        known = self._accepting(scope)
        # Does not wait for the lock, because the order only saves time and decides nothing.
        if known is not None and self._known[0] is not known and self._lock.acquire(blocking=False):
            try:
                self._known = (known, *(each for each in self._known if each is not known))
            finally:
                self._lock.release()
        return known

    def _accepting(self, scope: Scope) -> Specialisation | None:
        known = self._known
        for each in known:
            if each.holds_quickly(scope):
                return each
        # Full checks come last: one takes as long as many quick checks, and two shapes may take
        # turns.
        for each in known:
            if each.holds(scope):
                return each
        return None

    def add(self, made: Iterable[Specialisation]) -> None:
        with self._lock:
            new = [each for each in made if not any(each is known for known in self._known)]
            self._known = (*new, *self._known)

    def remove(self, failed: Specialisation) -> None:
        with self._lock:
            self._known = tuple(known for known in self._known if known is not failed)

    def __iter__(self) -> Iterator[Specialisation]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
