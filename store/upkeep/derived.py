"""Host-local databases of derived data: diskcache without pickle, in the user's state folder.

They don't lie in the shared folder, because SQLite corrupts databases on network file systems. A
failure here is only a DEBUG line, because derived data can be derived again. A folder that others
can write or have created is not used at all: through a link that they put in the place of a
database, this process would write into another database of the user.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Any

from npugx_cache.store.io import syscalls
from npugx_cache.store.io.trust import open_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TIMEOUT = 1.0
_DATABASE = "cache.db"
_FILES = (_DATABASE, f"{_DATABASE}-wal", f"{_DATABASE}-shm")
_QUERY = "SELECT key, value FROM Cache WHERE raw = 1 AND mode = 1 AND filename IS NULL"


_said: set[str] = set()


class Untrusted(Exception):
    """Others may control the state folder; the text says what is wrong with it."""


class Derived:
    """One database per kind of data and store. Each operation opens it; no hit does.

    `state` is the state folder. Stores of one folder with different `mark`s have different
    databases.
    """

    def __init__(self, kind: str, root: str, state: Path, *, mark: str = "") -> None:
        self.kind = kind
        self._root = root
        self._state = state
        self._mark = mark

    def folder(self) -> Path:
        name = os.fsencode(os.path.realpath(self._root)) + self._mark.encode()
        return self._state / self.kind / hashlib.sha256(name).hexdigest()[:16]

    def rows(self) -> list[tuple[Any, Any]]:
        """Return (key, msgpack bytes) of every value, none if there is no database.

        Reads without diskcache, which writes settings whenever it opens and takes 20 ms.
        """
        if not self.exists():
            return []
        import sqlite3

        found: list[tuple[Any, Any]] = []
        with self.harmless("reading"):
            _check(self.folder())
            uri = (self.folder() / _DATABASE).as_uri()
            database = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=_TIMEOUT)
            try:
                found = database.execute(_QUERY).fetchall()
            finally:
                database.close()
        return found

    @contextlib.contextmanager
    def open_database(self) -> Iterator[Any]:
        """Open the database as a `diskcache.Cache`, and create it if it is missing."""
        from npugx_cache.store.upkeep.plain_disk import MAX_VALUE, PlainCache, PlainDisk

        folder = self.folder()
        make_folder(folder)
        _check(folder)
        cache = PlainCache(
            str(folder),
            disk=PlainDisk,
            timeout=_TIMEOUT,
            eviction_policy="none",
            disk_min_file_size=MAX_VALUE,
        )
        try:
            yield cache
        finally:
            cache.close()

    def exists(self) -> bool:
        try:
            return (self.folder() / _DATABASE).is_file()
        except OSError:  # the state folder of another user, after a change of users
            return False

    @contextlib.contextmanager
    def harmless(self, doing: str) -> Iterator[None]:
        """Turn every failure into a log line, and delete a file that is no database."""
        try:
            yield
        except Untrusted as error:
            _say_once(
                f"no hits are counted, no misses are noted, and listings take longer: {error}"
            )
        except Exception as error:  # noqa: BLE001  # diskcache raises errors of many types
            debug(f"{doing} {self.kind} failed: {error!r}")
            if type(error).__name__ == "DatabaseError":
                self._reset()

    def _reset(self) -> None:
        for name in _FILES:
            with contextlib.suppress(OSError):
                (self.folder() / name).unlink()


def make_folder(folder: Path) -> None:
    """Create missing folders for this user alone; raise `Untrusted` if others control the place."""
    missing = [folder]
    while not os.path.lexists(missing[-1].parent):
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        try:
            syscalls.mkdir(str(path), 0o700)
        except FileExistsError:
            continue
        try:
            _check_folder(path)
        except Untrusted:
            syscalls.rmdir(str(path))
            raise


def _check(folder: Path) -> None:
    """Raise `Untrusted` unless the folder, the way to it and its database are this user's own."""
    _check_folder(folder)
    closed = not syscalls.stat(str(folder)).st_mode & 0o077
    for name in _FILES:
        try:
            status = syscalls.lstat(str(folder / name))
        except FileNotFoundError:
            continue
        if not syscalls.is_regular(status) or status.st_nlink != 1:
            raise Untrusted(f"{folder / name} is not a file of its own; remove it")
        if status.st_uid not in {os.geteuid(), 0} or (status.st_mode & 0o022 and not closed):
            raise Untrusted(f"others can write {folder / name}; remove it")


def _check_folder(folder: Path) -> None:
    syscalls.close(open_own(folder))


def open_own(folder: Path) -> int:
    """Open a folder that only this user writes; raise `Untrusted` for any other.

    The caller closes the descriptor.
    """
    found = open_root(str(folder), "private")
    if isinstance(found, str):
        what = found.partition(". Do: ")[0]
        raise Untrusted(f"{what}. Name another state folder with XDG_STATE_HOME")
    return found.fd


def _say_once(text: str) -> None:
    import logging

    if text not in _said:
        _said.add(text)
        logging.getLogger("npugx_cache").warning("%s", text)


def debug(text: str) -> None:
    import logging  # here, because it takes 5 ms and `npugx-cache ls` does not need it otherwise

    logging.getLogger("npugx_cache").debug("%s", text)
