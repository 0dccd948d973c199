"""Locks by name, so that one worker compiles a graph while the others wait.

A lock saves work and never carries correctness: a worker that gets no lock goes on without it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npugx_cache.store.content.files import is_writable_in_place
from npugx_cache.store.format.layout import is_lock, make_parents
from npugx_cache.store.io import syscalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npugx_cache.store.format.layout import Folder

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
    path = f"{folder.root}/{folder.lock(name)}"
    held: dict[str, LockFile] = _held_here.__dict__.setdefault("files", {})
    if not is_lock(f"{name}.lock") or path in held:
        known = "already held by this thread" if path in held else "not a lock name"
        yield NotLocked(reason=f"{name}: {known}")
        return
    lock, answer = _acquire(folder, path, wait)
    if lock is None:
        yield answer
        return
    held[path] = lock
    try:
        yield answer
    finally:
        del held[path]
        lock.release()


def _acquire(folder: Folder, path: str, wait: Wait) -> tuple[LockFile | None, Locked | NotLocked]:
    started = time.monotonic()
    pause, next_notice = _FIRST_PAUSE, 0.0
    longest = wait.seconds
    lock = LockFile(folder, path)
    answer: Locked | NotLocked | None = None
    try:
        make_parents(folder, lock.path)
        while not lock.acquire():
            waited = time.monotonic() - started
            if longest is None:
                longest = _bound(_cost(lock.text()))
            if wait.done is not None and wait.done():
                return None, NotLocked(reason="the result appeared", waited=waited, appeared=True)
            if waited >= longest:
                reason = f"still held by {_holder(lock.text())} after {waited:.1f} s"
                return None, NotLocked(reason=reason, waited=waited, held=True)
            if waited >= next_notice:
                _notice(lock, waited, longest)
                next_notice = waited + _NOTICE_EVERY
            time.sleep(min(pause, max(0.0, longest - waited)))
            pause = min(2 * pause, _LONGEST_PAUSE)
        lock.sign(_cost(lock.text()))
        answer = Locked(waited=time.monotonic() - started)
    except OSError as error:
        return None, NotLocked(reason=folder.explain(error, lock.path))
    except (ImportError, NotImplementedError, RuntimeError, ValueError) as error:
        return None, NotLocked(reason=f"locks are not available: {error}")
    finally:
        if answer is None:
            lock.release()  # of what is not held: it is closed
    return lock, answer


def _notice(lock: LockFile, waited: float, longest: float) -> None:
    _LOG.info(
        "waiting for %s, which compiles the same graph (%.0f s so far, at most %.0f s)",
        _holder(lock.text()),
        waited,
        longest,
    )


def note_cost(seconds: float) -> None:
    """Note in the locks that this thread holds what the work under them has cost."""
    for lock in _held_here.__dict__.get("files", {}).values():
        lock.sign(seconds)


def _bound(cost: float | None) -> float:
    if cost is None:
        return _WAIT_AT_MOST
    return min(_WAIT_AT_MOST, max(_WAIT_AT_LEAST, _WAIT_FACTOR * cost))


def _holder(text: str) -> str:
    holder = text.partition("\n")[0]
    return holder if holder and holder.isprintable() else "another worker"


def _cost(text: str) -> float | None:
    """Return what the holders of a lock have noted of the work under it, where that makes sense."""
    try:
        _, noted = text.split("\n")
        cost = float(noted)
    except ValueError:
        return None
    return cost if 0 <= cost < float("inf") else None


class LockFile:
    """A lock file. Opened in the folder of the locks, through no link; filelock does the locking.

    Given a path, filelock would go the way to it anew, which others may have swapped meanwhile.
    """

    __slots__ = ("_fd", "_folder", "path")

    def __init__(self, folder: Folder, path: str) -> None:
        self._folder = folder
        self.path = folder.relative(path)
        self._fd = -1

    def acquire(self) -> bool:
        """Try once; tell whether it is held now. Raises OSError where it can't be locked at all."""
        from filelock import lock_descriptor

        if self._fd < 0:
            self._open()
        if not lock_descriptor(self._fd, blocking=False):
            return False
        if syscalls.fstat(self._fd).st_nlink > 0:
            return True
        self.release()  # a cleaner has removed it while we waited: others lock a new one
        return False

    def release(self) -> None:
        """Release the lock and close the file. In a forked child that has been done before."""
        with _forking:
            _open_here.discard(self)
            if self._fd >= 0:
                with contextlib.suppress(OSError):
                    syscalls.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        with self._folder.tree.place(self.path) as (at, name), _forking:
            try:
                self._fd = syscalls.open_lock(name, at)
            except FileNotFoundError:
                try:
                    self._fd = self._folder.create(name, at)
                except FileExistsError:
                    self._fd = syscalls.open_lock(name, at)
            _open_here.add(self)
        if not syscalls.is_regular(syscalls.fstat(self._fd)):
            self.release()
            raise OSError(errno.EINVAL, "not a regular file", self.path)

    def sign(self, cost: float | None) -> None:
        """Write into it who holds it, for those who wait, and what it cost the last time.

        Only into a file that has this one name: a link that a stranger made in the place of a lock
        file would give them what is in any file of the user's to destroy.
        """
        with contextlib.suppress(OSError):
            if self._fd < 0 or not is_writable_in_place(self._folder, self._fd):
                return
            holder = f"process {os.getpid()} on {os.uname().nodename[:64]}"
            text = holder if cost is None else f"{holder}\n{cost:.3f}"
            syscalls.truncate(self._fd)
            syscalls.write_at_start(self._fd, text.encode("utf-8", "replace"))

    def text(self) -> str:
        """Return what its holder wrote into it."""
        try:
            return syscalls.read_at_start(self._fd, _MAX_HOLDER).decode("utf-8", "replace")
        except OSError:
            return ""

    def forget_parent(self) -> None:
        """Close the file in a forked child, where it is still its parent's to release."""
        with contextlib.suppress(OSError):
            syscalls.close(self._fd)
        self._fd = -1


# A lock lasts until the last process that has the file open is gone, be the holder long dead: a
# forked child closes it. The mutex keeps a fork from coming between opening a file and noting it.
_open_here: set[LockFile] = set()
_forking = threading.RLock()  # a signal handler may fork as well


def _after_fork() -> None:
    _forking.release()
    for lock in _open_here:
        lock.forget_parent()
    _open_here.clear()


os.register_at_fork(
    before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_after_fork
)
