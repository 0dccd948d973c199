"""Sends entries to the remote tier in a thread, so that no call waits for it.

A tier that is down gets what is left when it is back, if the process still lives; at its end a
process waits some seconds for the thread.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from npugx_cache.store.remote.engine import Fault
from npugx_cache.store.upkeep import flushing

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.store.remote.connection import Connection

_LOG = logging.getLogger("npugx_cache")
_MAX_LEFT = 256
_LAST_CHANCE = 5.0  # seconds that the end of the process waits
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0


class Writer:
    """Does jobs that talk to a tier, one after the other, until each is done or refused."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._forget()
        flushing.note_open_store(self)

    def _forget(self) -> None:
        self._jobs: deque[tuple[str, Callable[[], str | None]]] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._running = False
        self._ending = False
        self._finalized = False

    def add(self, what: str, job: Callable[[], str | None]) -> None:
        """Do a job soon. It returns why it can't be done, or None, and may raise `Fault`."""
        with self._changed:
            if len(self._jobs) >= _MAX_LEFT:
                _LOG.warning("not done at the remote tier, because too much is left: %s", what)
                return
            self._jobs.append((what, job))
            self._changed.notify_all()
            if self._running:
                return
            self._running = True
        self._finish_in_children_too()
        try:
            threading.Thread(target=self._work, name="npugx-cache-writer", daemon=True).start()
        except RuntimeError:  # an interpreter that ends starts no thread
            self._running = False

    def flush(self) -> None:
        """Nothing: the thread writes as soon as it can."""

    def settle(self) -> None:
        """At the end of the process: wait some seconds for what is left, and give up the rest."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._running, _LAST_CHANCE)
            left = len(self._jobs)
        if left:
            _LOG.warning("%d entries were not written to the remote tier", left)
        self._connection.engine.stop()

    def forget_parent(self) -> None:
        """The parent writes its own entries; its thread does not exist in a forked child."""
        self._forget()

    def _finish_in_children_too(self) -> None:
        util = sys.modules.get("multiprocessing.util")
        if util is not None and not self._finalized:  # its children do not run atexit
            self._finalized = True
            util.Finalize(None, self.settle, exitpriority=0)

    def _work(self) -> None:
        pause, pid = _FIRST_PAUSE, os.getpid()
        while os.getpid() == pid:
            with self._changed:
                if not self._jobs:
                    self._running = False
                    self._changed.notify_all()
                    return
                what, job = self._jobs[0]
            again = self._try(what, job)
            with self._changed:
                if not again or self._ending:
                    self._jobs.popleft()
                    pause = _FIRST_PAUSE
                    continue
                self._changed.wait(pause * random.uniform(0.5, 1.5))  # noqa: S311
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _try(self, what: str, job: Callable[[], str | None]) -> bool:
        """Try a job once; tell whether it is worth another try."""
        started = time.monotonic()
        try:
            reason = self._connection.engine.obstacle() or job()
        except Fault as fault:
            reason = self._connection.failed_with(fault)
            if not fault.lasting:
                _LOG.debug("%s: %s", what, reason)
                return True
        except Exception as error:  # noqa: BLE001 - nobody else would learn that the thread ended
            reason = repr(error)
        else:
            if reason is None:
                took = (time.monotonic() - started) * 1e3
                _LOG.debug("%s: done at the remote tier in %.0f ms", what, took)
                return False
        _LOG.warning("%s: not done at the remote tier: %s", what, reason)
        return False
