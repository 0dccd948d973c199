"""Tells what a compile does while it goes on. Only a miss loads this."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Self

from npugx_cache.events import logger, phase_span

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

SLOW_SECONDS = 2.0
_BEAT_EVERY = 10.0
_SHORT = 0.1
"""A phase that took less than this part of `SLOW_SECONDS` has no line of its own."""
PASSING = {"npugx_cache_passing": True}
"""The `extra` of a line that the next line makes worthless (`log_output`)."""


class Progress:
    """Logs at INFO what a compile does, if the compile takes long; use it as a context manager.

    Each phase of a compile that takes longer than `SLOW_SECONDS` gets a line when the phase ends.
    The lines of earlier phases wait until the compile has taken that long, so that a quick compile
    logs nothing. Every `every` seconds a line names the phase that goes on at that moment.
    """

    def __init__(
        self,
        function: str,
        *,
        every: float = _BEAT_EVERY,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._function = function
        self._clock = clock
        self._started = self._last = clock()
        self._phase = ""
        self._end_span: Callable[[], None] | None = None
        self._untold: list[tuple[str, float]] = []
        self._ended: list[tuple[str, float]] = []
        self._beats = 0
        self._heart = _Heart(self, every)

    def __enter__(self) -> Self:
        if logger.isEnabledFor(logging.INFO):
            self._heart.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        self._heart.stop()
        self._finish_span()
        if kind is None:
            self.end()
        elif self._beats:
            # Whoever has read that the compile goes on reads that it does not any more.
            took = self._clock() - self._started
            logger.info("%s: compiling ended after %.0f s: %s", self._function, took, kind.__name__)

    @property
    def phases(self) -> tuple[tuple[str, float], ...]:
        """The phases that have ended, in their order, with the seconds that passed in each."""
        return tuple(self._ended)

    def begin(self, phase: str) -> None:
        """The phase before has ended, and this one begins."""
        self.end()
        self._phase = phase
        self._end_span = phase_span(phase, self._function)

    def end(self) -> None:
        self._finish_span()
        now = self._clock()
        if self._phase:
            self._untold.append((self._phase, now - self._last))
            self._ended.append(self._untold[-1])
        self._phase, self._last = "", now
        if now - self._started > SLOW_SECONDS:
            for name, seconds in self._untold:
                if seconds >= SLOW_SECONDS * _SHORT:
                    logger.info("%s: compiling: %s took %.1f s", self._function, name, seconds)
            self._untold.clear()

    def _finish_span(self) -> None:
        end, self._end_span = self._end_span, None
        if end is not None:
            end()

    def beat(self) -> None:
        self._beats += 1
        logger.info(
            "%s: still compiling after %.0f s: %s",
            self._function,
            self._clock() - self._started,
            self._phase or "starting",
            extra=PASSING,
        )


class _Heart:
    """A thread that lets a `Progress` beat, from `start` to `stop`.

    The thread keeps no process alive. A forked child has no such thread and needs none.
    """

    def __init__(self, progress: Progress, every: float) -> None:
        # Weak, so that the thread ends also where a signal handler raised between two instructions
        # and nobody calls `stop`.
        self._progress = weakref.ref(progress)
        self._every = every
        self._running = threading.Lock()  # held while the thread is to go on
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def start(self) -> None:
        self._running.acquire()
        thread = threading.Thread(
            target=_beating,
            args=(self._progress, self._running, self._every),
            name="npugx_cache progress",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:  # the system or an interpreter that ends gives no thread
            logger.debug("no progress is told: %s", error)
            return
        self._thread = thread
        # A daemon thread that writes to stderr while the interpreter ends can abort the process.
        atexit.register(self.stop)

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        atexit.unregister(self.stop)
        if os.getpid() != self._process:
            return
        self._running.release()
        # Not for ever: a handler of the user's logging may wait for a lock that this thread holds.
        thread.join(_LONGEST_WAIT)


_LONGEST_WAIT = 1.0


def _beating(progress: weakref.ref[Progress], running: threading.Lock, every: float) -> None:
    with contextlib.suppress(Exception):  # of a handler; the compile's own lines show it as well
        while not running.acquire(timeout=every):
            told = progress()
            if told is None:
                return
            told.beat()
            del told  # or the thread itself would keep it alive
