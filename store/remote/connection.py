"""The connection of this process to one remote tier, with a circuit breaker in front of it.

All functions of a process share the connection, so that a tier that is down costs the process a few
lookups, and not each of its functions.
"""

from __future__ import annotations

import logging
import random
import threading
import time

from npugx_cache.config import remote_address
from npugx_cache.interpreter.forks import survive_forks
from npugx_cache.store.remote.engine import Engine, Fault

_LOG = logging.getLogger("npugx_cache")
_FAULTS = 3  # in a row; then the tier is not asked for a while
_PAUSE = 30.0
_connections: dict[str, Connection] = {}


class Connection:
    """The engine of a tier, and whether it is worth asking now."""

    def __init__(self, text: str) -> None:
        self.address = remote_address.parse(text)
        self.engine = Engine(self.address)
        self.wrong_blobs: set[str] = set()
        """Digests under which the tier has other bytes, so that they must be written again."""
        self.withdrawn: set[str] = set()
        """Bad entries that this process took out of the tier; somebody may put them back."""
        self._mutex = threading.RLock()
        self._faults = 0
        self._shut_until = 0.0
        self._last = ""
        survive_forks(self, "_mutex")

    def shut_for(self) -> float:
        """How many seconds the breaker stays open; not positive if the tier may be asked."""
        with self._mutex:
            return self._shut_until - time.monotonic()

    def obstacle(self) -> str | None:
        """Why the tier is not asked now, or None."""
        if (left := self.shut_for()) > 0:
            return f"the remote tier is not asked for another {left:.0f} s: {self._last}"
        reason = self.engine.obstacle()
        return None if reason is None else f"the remote tier can't be used: {reason}"

    def note_answer(self) -> None:
        with self._mutex:
            self._faults, self._shut_until = 0, 0.0

    def note_fault(self, reason: str, *, lasting: bool = False) -> None:
        """Count a fault. After three, or one that lasts, the tier is left alone for a while.

        Then one lookup tries again, and a fault shuts the breaker at once.
        """
        with self._mutex:
            self._faults = _FAULTS if lasting else self._faults + 1
            self._last = reason
            if self._faults < _FAULTS or self._shut_until > time.monotonic():
                return
            # Not the same for all workers, or they would come back all at once.
            pause = _PAUSE * random.uniform(0.8, 1.2)  # noqa: S311
            self._shut_until = time.monotonic() + pause
        _LOG.warning(
            "the remote tier %s is not asked for %.0f s: %s", self.address.text, pause, reason
        )

    def failed_with(self, fault: Fault) -> str:
        """Count a fault of the engine; return the reason in words."""
        reason = f"the remote tier failed: {fault}"
        self.note_fault(reason, lasting=fault.lasting)
        return reason


def connection_to(text: str) -> Connection:
    """The connection to the tier with this address."""
    if text not in _connections:
        _connections[text] = Connection(text)
    return _connections[text]
