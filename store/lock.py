"""One worker at a time for one name.

Saves work and never carries correctness: whoever gets no lock goes on without it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npugx_cache.store import syscalls
from npugx_cache.store.layout import is_lock, make_parents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from filelock import BaseFileLock

    from npugx_cache.store.layout import Folder

_LOG = logging.getLogger("npugx_cache")
_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.05
_NOTICE_EVERY = 10.0
_MAX_HOLDER = 160
_WAIT_AT_MOST = 600.0  # also where nobody knows what the work takes
_WAIT_AT_LEAST = 30.0
_WAIT_FACTOR = 2.0  # what is noted is work alone; a busy host and a slow disk come on top
# Waiting for a lock that this very thread holds would last until the wait is over.
_held_here = threading.local()


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """The lock is held. `waited` is in seconds."""

    waited: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLocked:
    """Go on without the lock: it saves work and never carries correctness.

    `appeared`: `done` said yes while waiting. `held`: somebody else still has it.
    """

    reason: str
    waited: float = 0.0
    appeared: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """How long to wait, and when to stop because the result has appeared.

    `seconds` None: bounded by what the holders of this lock took for their last compile, and by
    10 minutes whatever they noted: a lock file can be written by others.
    """

    seconds: float | None
    done: Callable[[], bool] | None = None


@contextlib.contextmanager
def hold(folder: Folder, name: str, wait: Wait) -> Iterator[Locked | NotLocked]:
    """Hold the lock of a name, for a bounded time of waiting.

    Errors of locking are answers; what the body (or `wait.done`) raises goes through.
    """
    if folder.readonly is not None:
        yield NotLocked(reason=f"read-only: {folder.readonly}")
        return
    path = folder.lock(name)
    held: set[str] = _held_here.__dict__.setdefault("paths", set())
    if not is_lock(f"{name}.lock") or path in held:
        known = "already held by this thread" if path in held else "not a lock name"
        yield NotLocked(reason=f"{name}: {known}")
        return
    lock, answer = _acquire(folder, path, wait)
    if lock is None:
        yield answer
        return
    held.add(path)
    try:
        yield answer
    finally:
        held.discard(path)
        _release(lock)


def _acquire(
    folder: Folder, path: str, wait: Wait
) -> tuple[BaseFileLock | None, Locked | NotLocked]:
    started = time.monotonic()
    pause, next_notice = _FIRST_PAUSE, 0.0
    longest = wait.seconds
    try:
        make_parents(folder, path)
        lock = _file_lock(path, folder.file_mode)
        while not _try(lock):
            waited = time.monotonic() - started
            if longest is None:
                longest = _bound(path)
            if wait.done is not None and wait.done():
                return None, NotLocked(reason="the result appeared", waited=waited, appeared=True)
            if waited >= longest:
                reason = f"still held by {_holder(folder, path)} after {waited:.1f} s"
                return None, NotLocked(reason=reason, waited=waited, held=True)
            if waited >= next_notice:
                _notice(folder, path, waited, longest)
                next_notice = waited + _NOTICE_EVERY
            time.sleep(min(pause, max(0.0, longest - waited)))
            pause = min(2 * pause, _LONGEST_PAUSE)
    except OSError as error:
        return None, NotLocked(reason=folder.explain(error, path))
    except (ImportError, NotImplementedError, RuntimeError, ValueError) as error:
        return None, NotLocked(reason=f"locks are not available: {error}")
    _sign(path, _last_cost(path))
    return lock, Locked(waited=time.monotonic() - started)


def _file_lock(path: str, mode: int) -> BaseFileLock:
    from filelock import FileLock

    # A soft lock survives the kill of its holder and would block everybody for ever.
    return FileLock(path, mode=mode, fallback_to_soft=False)


def _try(lock: BaseFileLock) -> bool:
    from filelock import Timeout

    try:
        lock.acquire(blocking=False)
    except Timeout:  # an OSError too: it must not reach the handler for those
        return False
    return True


def _release(lock: BaseFileLock) -> None:
    try:
        lock.release()
    except (OSError, RuntimeError) as error:
        _LOG.debug("releasing a lock failed: %s", error)


def _notice(folder: Folder, path: str, waited: float, longest: float) -> None:
    _LOG.info(
        "waiting for %s, which compiles the same graph (%.0f s so far, at most %.0f s)",
        _holder(folder, path),
        waited,
        longest,
    )


def note_cost(seconds: float) -> None:
    """Note in the locks that this thread holds what the work under them has cost."""
    for path in _held_here.__dict__.get("paths", ()):
        _sign(path, seconds)


def _bound(path: str) -> float:
    cost = _last_cost(path)
    if cost is None:
        return _WAIT_AT_MOST
    return min(_WAIT_AT_MOST, max(_WAIT_AT_LEAST, _WAIT_FACTOR * cost))


def _sign(path: str, cost: float | None) -> None:
    """Write into the lock file who holds it, for those who wait, and what it cost the last time.

    Only into a file that has this one name: a link that a stranger made in the place of a lock
    file would give them what is in any file of the user's to destroy.
    """
    with contextlib.suppress(OSError):
        fd = syscalls.open_again(path)
        try:
            status = syscalls.fstat(fd)
            if not syscalls.is_regular(status) or status.st_nlink != 1:
                return
            holder = f"process {os.getpid()} on {os.uname().nodename[:64]}"
            text = holder if cost is None else f"{holder}\n{cost:.3f}"
            syscalls.truncate(fd)
            syscalls.write_all(fd, text.encode("utf-8", "replace"))
        finally:
            syscalls.close(fd)


def _signature(path: str) -> list[str]:
    """Return the lines of a lock file; raises OSError."""
    fd = syscalls.open_read(path)
    try:
        return syscalls.read_all(fd, _MAX_HOLDER).decode("utf-8", "replace").split("\n")
    finally:
        syscalls.close(fd)


def _holder(folder: Folder, path: str) -> str:
    try:
        text = _signature(path)[0]
    except OSError as error:
        return f"another worker ({folder.explain(error, path)})"
    return text if text and text.isprintable() else "another worker"


def _last_cost(path: str) -> float | None:
    try:
        _, text = _signature(path)
        cost = float(text)
    except (OSError, ValueError):
        return None
    return cost if 0 <= cost < float("inf") else None
