"""The journal: which lookups ended without a hit, when and why, for whoever asks later.

A file of JSON lines on this host, in the user's state folder, like the counts of hits. Each write
appends whole lines at once, so that processes need no lock and wait for nobody. A write that fails,
or that ends halfway, loses lines and nothing else. A full file becomes the older one of two.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.store.io import syscalls
from npugx_cache.store.io.trust import distrust
from npugx_cache.store.upkeep import flushing
from npugx_cache.store.upkeep.derived import Derived, Untrusted, make_folder, open_own

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_AGE = 30 * 86400.0
_AHEAD = 300.0
"""How far the clock of a process that wrote a line may be ahead of the reader's, in seconds."""
_MAX_BYTES = 1 << 20
_MAX_LINE = 4096
_MAX_PENDING = 256
_MAX_REASONS = 9
_MAX_PHASES = 16
_MAX_TEXT = 300
NOT_STORED = "not stored"
"""How the reason of a miss begins whose graph could not be published."""
_NEWER, _OLDER = "misses.jsonl", "misses.older.jsonl"


class JournalLine(NamedTuple):
    """One lookup without a hit. `outcome` is "miss" or "bypass"; times are in seconds.

    `nearest` and `stored` are ids of entries or empty: the one that fits best, and the one that was
    made. `seconds` is what compiling took, and `phases` says of each phase of it how many seconds
    passed. `readonly`: the process did not write the store, and its hits are not counted.
    """

    time: float
    function: str
    outcome: str
    reasons: tuple[str, ...]
    pid: int
    rank: int | None = None
    nearest: str = ""
    stored: str = ""
    seconds: float = 0.0
    readonly: bool = False
    phases: tuple[tuple[str, float], ...] = ()


class Journal:
    """The journal of the store in one folder. Safe in several threads and in a forked child."""

    def __init__(self, root: str, state: Path) -> None:
        self._place = Derived("journal", root, state)
        # A deque, because its methods are atomic, so that `add` waits for no write.
        self._pending: deque[JournalLine] = deque(maxlen=_MAX_PENDING)
        self._writing = threading.RLock()
        _of_this_process.add(self)

    @property
    def folder(self) -> Path:
        return self._place.folder()

    def add(self, line: JournalLine) -> None:
        """Keep a line in memory; a timer, or the end of the process, calls `flush`."""
        self._pending.append(line)
        flushing.has_hits(self)

    def flush(self) -> None:
        """Write the lines that this process has added. Loses them if that fails.

        Waits for a flush of another thread. Otherwise the lines that the other thread has taken
        would be written neither when this call returns nor, at the end of the process, at all.
        """
        with self._writing:
            flushing.note_flush(self)
            # A forked child leaves its parent's lines out, because the parent writes them.
            data = "".join(
                _as_text(line) for line in self._take_pending() if line.pid == os.getpid()
            )
            if data:
                with self._place.harmless("storing"):
                    self._append(data.encode())

    def forget_parent(self) -> None:
        """Forget who was writing at the fork, because a thread of the parent ends no flush here."""
        self._writing = threading.RLock()

    def load(self, since: float = 0.0) -> list[JournalLine]:
        """The lines of at most `MAX_AGE` and not before `since`, the newest first.

        A line of the future was written under a wrong clock. When is unknown, so it is left out:
        otherwise it would be the newest line for as long as the clock was ahead.
        """
        oldest = max(since, time.time() - MAX_AGE)
        found: list[JournalLine] = []
        with self._place.harmless("reading"):
            for data in self._contents():
                lines = map(_parse_line, data.decode(errors="replace").splitlines())
                found += [line for line in lines if line is not None and line.time >= oldest]
        newest = time.time() + _AHEAD
        past = (line for line in found if line.time <= newest)
        return sorted(past, key=lambda line: line.time, reverse=True)

    def clear(self) -> None:
        """Remove all lines that are written."""
        with self._place.harmless("clearing"), self._open_folder() as at:
            for name in (_OLDER, _NEWER) if at is not None else ():
                with contextlib.suppress(FileNotFoundError):
                    syscalls.unlink(name, at)

    def _take_pending(self) -> Iterator[JournalLine]:
        while self._pending:
            try:
                yield self._pending.popleft()
            except IndexError:  # another thread has taken the last one
                return

    def _append(self, data: bytes) -> None:
        folder = self._place.folder()
        make_folder(folder)
        at = open_own(folder)
        try:
            _make_room(at, len(data))
            with contextlib.suppress(FileExistsError):
                syscalls.close(syscalls.open_new(_NEWER, 0o600, at))
            # To append, also to a new file: another process may have written to it meanwhile.
            fd = syscalls.open_append(_NEWER, at)
            try:
                _check_file(folder / _NEWER, syscalls.fstat(fd))
                # The first byte ends a line that was cut off by a full disk.
                syscalls.write_all(fd, b"\n" + data)
            finally:
                syscalls.close(fd)
        finally:
            syscalls.close(at)

    def _contents(self) -> Iterator[bytes]:
        with self._open_folder() as at:
            for name in (_OLDER, _NEWER) if at is not None else ():
                try:
                    fd = syscalls.open_read(name, at)
                except FileNotFoundError:
                    continue
                try:
                    _check_file(self._place.folder() / name, syscalls.fstat(fd))
                    # Writers that come at the same time may exceed the limit a little.
                    yield syscalls.read_all(fd, 2 * _MAX_BYTES)
                finally:
                    syscalls.close(fd)

    @contextlib.contextmanager
    def _open_folder(self) -> Iterator[int | None]:
        """The folder of the files; None if there is none. Raises `Untrusted`."""
        folder = self._place.folder()
        if not os.path.lexists(folder):
            yield None
            return
        at = open_own(folder)
        try:
            yield at
        finally:
            syscalls.close(at)


_of_this_process: weakref.WeakSet[Journal] = weakref.WeakSet()
_journals: dict[tuple[str, str], Journal] = {}


def _after_fork() -> None:
    for journal in list(_of_this_process):
        journal.forget_parent()


os.register_at_fork(after_in_child=_after_fork)


def journal_of(root: str, state: Path) -> Journal:
    """The one journal that this process has for the store in a folder.

    So the bound on pending lines holds for all functions together, and one write takes them all.
    """
    return _journals.setdefault((root, str(state)), Journal(root, state))


def _check_file(path: Path, status: os.stat_result) -> None:
    if not syscalls.is_regular(status) or status.st_nlink != 1:
        raise Untrusted(f"{path} is not a file of its own; remove it")
    if fault := distrust(status, "private", None):
        raise Untrusted(f"{path}: {fault}; remove it")


def _make_room(at: int, size: int) -> None:
    """Make the newer file the older one if it is full or its first line is old."""
    try:
        fd = syscalls.open_read(_NEWER, at)
    except FileNotFoundError:
        return
    try:
        status = syscalls.fstat(fd)
        start = syscalls.read_at_start(fd, _MAX_LINE + 1).decode(errors="replace").split("\n")
        first = next(filter(None, map(_parse_line, start)), None)
        is_old = first is not None and first.time < time.time() - MAX_AGE
        if status.st_size + size < _MAX_BYTES and not is_old:
            return
        # Who gets no lock writes into the full file: another process makes room at this moment.
        # Without the lock, the second of two would put the new file in the place of the older one.
        if syscalls.lock_now(fd) and syscalls.lstat(_NEWER, at).st_ino == status.st_ino:
            syscalls.rename(_NEWER, _OLDER, at, at)
    finally:
        syscalls.close(fd)


def _cut(reason: str) -> str:
    return reason if len(reason) <= _MAX_TEXT else f"{reason[: _MAX_TEXT - 3]}..."


def _as_text(line: JournalLine) -> str:
    reasons = [_cut(reason) for reason in line.reasons[:_MAX_REASONS]]
    phases = tuple((name[:_MAX_TEXT], seconds) for name, seconds in line.phases[:_MAX_PHASES])
    function = line.function[:_MAX_TEXT]
    shown = line._replace(function=function, reasons=tuple(reasons), phases=phases)
    text = json.dumps(shown._asdict())
    if len(text) >= _MAX_LINE:  # of characters that take several bytes each
        shown = shown._replace(reasons=(ascii(reasons[0])[:_MAX_TEXT],), phases=())
        text = json.dumps(shown._asdict())
    return f"{text}\n"


def _parse_line(text: str) -> JournalLine | None:
    """The line that a text stands for; None for one that was cut off or that is not a line."""
    try:
        match json.loads(text) if 0 < len(text) <= _MAX_LINE else None:
            case {
                "time": (int() | float()) as when,
                "function": str(function),
                "outcome": "miss" | "bypass" as outcome,
                "reasons": [*reasons],
                "pid": int(pid),
                "rank": int() | None as rank,
                "nearest": str(nearest),
                "stored": str(stored),
                "seconds": (int() | float()) as seconds,
                "readonly": bool(readonly),
                **others,
            } if math.isfinite(when) and math.isfinite(seconds):
                texts = tuple(map(str, reasons))
                ids = nearest, stored
                phases = tuple(_phases(others.get("phases")))
                return JournalLine(
                    when, function, outcome, texts, pid, rank, *ids, seconds, readonly, phases
                )
    except (OverflowError, ValueError, RecursionError):
        pass
    return None


def _phases(data: object) -> Iterator[tuple[str, float]]:
    """The phases of a line, none in one that was written before lines had phases."""
    for row in data if isinstance(data, list) else ():
        match row:
            case [str(name), int() | float() as seconds] if math.isfinite(seconds) and seconds >= 0:
                yield name, float(seconds)
