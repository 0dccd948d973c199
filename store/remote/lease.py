"""Leases: one of several hosts compiles a graph while the others wait, where the engine allows it.

A lease is an object that only one host can create. The holder changes the object every few
seconds, so a host that sees no change for a while knows, by its own clock alone, that the holder is
gone. As with a lock of a folder, a lease only saves work: two hosts that both hold one compile the
same graph twice.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from typing import TYPE_CHECKING

from npugx_cache.store.io import syscalls
from npugx_cache.store.remote.engine import Fault

if TYPE_CHECKING:
    from npugx_cache.store.remote.engine import Engine

_BEAT = 3.0
_GONE_AFTER = 15.0
_MAX_BYTES = 256


class Lease:
    """One lease that this process may take. Its requests raise `Fault`, except in the thread."""

    def __init__(self, engine: Engine, path: str) -> None:
        self._engine, self._path = engine, path
        self._token = syscalls.random_name()
        self._mutex = threading.Lock()
        self._beating = threading.Lock()
        self._ended = threading.Event()
        self._held = False
        # Not the empty text, which others see while a file is created.
        self._seen: bytes | None = None
        self._since = time.monotonic()

    def take(self) -> bool:
        """Try to become the holder; tell whether that worked."""
        if not self._engine.create(self._path, self._text(0)):
            return False
        with self._mutex:
            self._held = not self._ended.is_set()
        if self._held:
            threading.Thread(target=self._keep, name="npugx-cache-lease", daemon=True).start()
        else:  # too late: the worker has gone on without the lease
            self.release()
        return self._held

    def give_up(self) -> bool:
        """Stop to hold the lease; tell whether it was held, and so must be released."""
        with self._mutex:
            self._ended.set()
            return self._held

    def is_free(self) -> bool:
        """Whether there is no holder any more. Removes the lease of a holder that is gone."""
        try:
            found = self._engine.read(self._path, _MAX_BYTES)
        except Fault as fault:
            if fault.is_absent:
                return True
            raise
        now = time.monotonic()
        if found != self._seen:
            self._seen, self._since = found, now
        if now - self._since < _GONE_AFTER:
            return False
        self._engine.delete(self._path)
        return True

    def release(self) -> None:
        # A beat that goes on would write the object again after it was deleted here.
        waited = self._beating.acquire(timeout=_GONE_AFTER)
        try:
            if self._is_ours():
                self._engine.delete(self._path)
        finally:
            if waited:
                self._beating.release()

    def _keep(self) -> None:
        pid, beat = os.getpid(), 0
        while not self._ended.wait(_BEAT * random.uniform(0.8, 1.0)) and os.getpid() == pid:  # noqa: S311
            beat += 1
            with self._beating, contextlib.suppress(Fault):  # the others go on if this lasts
                if self._ended.is_set() or not self._is_ours():
                    return
                self._engine.write(self._path, self._text(beat))

    def _is_ours(self) -> bool:
        try:
            found = self._engine.read(self._path, _MAX_BYTES)
        except Fault as fault:
            if fault.is_absent:
                return False
            raise
        return found.startswith(self._token.encode())

    def _text(self, beat: int) -> bytes:
        return f"{self._token} {beat}".encode()
