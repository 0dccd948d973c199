"""Locks by name, so that one worker compiles a graph while the others wait.

A lock only saves work. Correctness never depends on it: a worker that gets no lock goes on.
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

from npugx_cache.counters import PROCESS
from npugx_cache.events.progress import PASSING
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
_WAIT_AT_MOST = 600.0  # also if nobody knows how long the work takes
_WAIT_AT_LEAST = 30.0
_NO_END = float("inf")
_WAIT_FACTOR = 2.0  # the work took the noted time; a busy host and a slow disk add to it
# The locks that this thread holds: it would wait in vain for one of its own.
_held_here = threading.local()


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """The lock is held. `waited` is in seconds."""

    waited: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLocked:
    """The lock is not held. The caller goes on without it, because a lock only saves work.

    `held`: another worker still held the lock at the end.
    """

    reason: str
    waited: float = 0.0
    held: bool = False


@contextlib.contextmanager
def hold(
    folder: Folder,
    name: str,
    *,
    wait: float | None,
    needed_within: float | None = None,
    done: Callable[[], bool] | None = None,
) -> Iterator[Locked | NotLocked]:
    """Hold the lock of a name while the body runs, after waiting for a bounded time.

    Waits at most `wait` seconds, or until `done()` tells that the result has appeared. If `wait` is
    None, a worker waits twice as long as the last compile under this lock took, at least 30 seconds
    and at most 10 minutes. The maximum holds whatever the lock file says, because others can write
    that file. An error of locking gives `NotLocked`; what the body raises goes through.

    `needed_within`: others who depend on this worker give up after so many seconds, as the ranks of
    a process group do in a collective. The wait takes half of that at most, also if `wait` is
    longer, and the rest is for the work.
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
    allowed = _NO_END if needed_within is None else max(0.0, needed_within / 2)
    lock, answer = _acquire(folder, path, wait, allowed, done)
    if lock is None:
        yield answer
        return
    held[path] = lock
    try:
        yield answer
    finally:
        del held[path]
        lock.release()


def _acquire(
    folder: Folder,
    path: str,
    wait: float | None,
    allowed: float,
    done: Callable[[], bool] | None,
) -> tuple[LockFile | None, Locked | NotLocked]:
    started = time.monotonic()
    pause, next_notice = _FIRST_PAUSE, 0.0
    lock = LockFile(folder, path)
    answer: Locked | NotLocked | None = None
    try:
        make_parents(folder, lock.path)
        while not lock.acquire():
            waited = time.monotonic() - started
            wait = _longest_wait(_cost(lock.text())) if wait is None else wait
            longest = min(wait, allowed)
            if done is not None and done():
                return None, NotLocked(reason="the result appeared", waited=waited)
            if waited >= longest:
                reason = f"still held by {_holder(lock.text())} after {waited:.1f} s"
                if wait > 0:  # else nobody meant to wait, as for what is tidied up in passing
                    _LOG.warning("a lock is %s; going on without%s", reason, _why(wait, allowed))
                return None, NotLocked(reason=reason, waited=waited, held=True)
            if waited >= next_notice:
                _notice(lock, waited, longest, _why(wait, allowed))
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
        if pause > _FIRST_PAUSE:  # it has slept
            PROCESS.add("lock_waits")
            PROCESS.add("lock_wait_seconds", time.monotonic() - started)
        if answer is None:
            lock.release()  # the lock is not held: this closes the file
    return lock, answer


def _why(wait: float, allowed: float) -> str:
    """What bounds the wait, where the ranks of this worker's process groups do."""
    return ", half of the timeout of the process group" if allowed < wait else ""


def _notice(lock: LockFile, waited: float, longest: float, why: str) -> None:
    _LOG.info(
        "waiting for %s, which compiles the same graph (%.0f s so far, at most %.0f s%s)",
        _holder(lock.text()),
        waited,
        longest,
        why,
        extra=PASSING,
    )


def note_cost(seconds: float) -> None:
    """Write into the locks that this thread holds how many seconds the work under them took."""
    for lock in _held_here.__dict__.get("files", {}).values():
        lock.sign(seconds)


def _longest_wait(cost: float | None) -> float:
    if cost is None:
        return _WAIT_AT_MOST
    return min(_WAIT_AT_MOST, max(_WAIT_AT_LEAST, _WAIT_FACTOR * cost))


def _holder(text: str) -> str:
    holder = text.partition("\n")[0]
    return holder if holder and holder.isprintable() else "another worker"


def _cost(text: str) -> float | None:
    """Return the seconds that the last work under a lock took, or None without a valid number."""
    try:
        _, noted = text.split("\n")
        cost = float(noted)
    except ValueError:
        return None
    return cost if 0 <= cost < float("inf") else None


class LockFile:
    """A lock file, opened in the folder of the locks through no link, and locked by filelock.

    filelock gets the descriptor and no path, because others may have swapped a folder on the path.
    """

    __slots__ = ("_fd", "_folder", "path")

    def __init__(self, folder: Folder, path: str) -> None:
        self._folder = folder
        self.path = folder.relative(path)
        self._fd = -1

    def acquire(self) -> bool:
        """Try once to lock; tell whether the lock is held. Raises OSError if it can't be locked."""
        from filelock import lock_descriptor

        if self._fd < 0:
            self._open()
        if not lock_descriptor(self._fd, blocking=False):
            return False
        if syscalls.fstat(self._fd).st_nlink > 0:
            return True
        self.release()  # a cleaner has removed this file meanwhile: others lock a new one
        return False

    def release(self) -> None:
        """Release the lock and close the file, unless a fork has closed it in this child."""
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
        """Write who holds the lock, and the seconds that the last work took, for those who wait.

        Written only if the file has no second name. A stranger could have put a hard link to any
        other file of the user in the place of the lock file, to have it overwritten.
        """
        with contextlib.suppress(OSError):
            if self._fd < 0 or not is_writable_in_place(self._folder, self._fd):
                return
            holder = f"process {os.getpid()} on {os.uname().nodename[:64]}"
            text = holder if cost is None else f"{holder}\n{cost:.3f}"
            syscalls.truncate(self._fd)
            syscalls.write_at_start(self._fd, text.encode("utf-8", "replace"))

    def text(self) -> str:
        """Return what the holder wrote into the file, or an empty text."""
        try:
            return syscalls.read_at_start(self._fd, _MAX_HOLDER).decode("utf-8", "replace")
        except OSError:
            return ""

    def forget_parent(self) -> None:
        """Close the file in a forked child; the parent still holds the lock and releases it."""
        with contextlib.suppress(OSError):
            syscalls.close(self._fd)
        self._fd = -1


# A lock lasts until every process has closed the file, so a forked child must close it: otherwise
# the lock would outlive its holder. The mutex prevents a fork between opening a file and noting it.
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
