"""Host-local databases of derived data: diskcache without pickle, in the user's state folder.

SQLite over a network file system corrupts, so nothing of this lies in the shared folder. Whatever
fails here is a DEBUG line: what is derived can be derived again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TIMEOUT = 1.0
_DATABASE = "cache.db"
_QUERY = "SELECT key, value FROM Cache WHERE raw = 1 AND mode = 1 AND filename IS NULL"


class Derived:
    """One database per kind and store. Opened for each operation: all are off the hit path."""

    def __init__(self, kind: str, root: str, *, state: Path | None = None, mark: str = "") -> None:
        self.kind = kind
        self._root = root
        self._state = state
        self._mark = mark

    def folder(self) -> Path:
        state = self._state
        if state is None:
            from platformdirs import user_state_path

            state = user_state_path("npugx_cache")
        name = os.fsencode(os.path.realpath(self._root)) + self._mark.encode()
        return state / self.kind / hashlib.sha256(name).hexdigest()[:16]

    def rows(self) -> list[tuple[Any, Any]]:
        """Return (key, msgpack bytes) of every value, none where there is no database.

        Read without diskcache, which writes settings on every opening and takes 20 ms.
        """
        if not self.exists():
            return []
        import sqlite3

        found: list[tuple[Any, Any]] = []
        with self.harmless("reading"):
            uri = (self.folder() / _DATABASE).as_uri()
            database = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=_TIMEOUT)
            try:
                found = database.execute(_QUERY).fetchall()
            finally:
                database.close()
        return found

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        """Open it as a `diskcache.Cache`, created where it is missing."""
        import diskcache

        from npugx_cache.store.plain_disk import MAX_VALUE, PlainDisk

        folder = self.folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        cache = diskcache.Cache(
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
        except OSError:  # a state folder of somebody else, after a change of users
            return False

    @contextlib.contextmanager
    def harmless(self, doing: str) -> Iterator[None]:
        """Turn every failure into a DEBUG line, and drop a database that is none."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # diskcache's own failures are of every kind
            debug(f"{doing} {self.kind} failed: {error!r}")
            if type(error).__name__ == "DatabaseError":
                self._reset()

    def _reset(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                (self.folder() / f"{_DATABASE}{suffix}").unlink()


def debug(text: str) -> None:
    import logging  # for `ls`, which has no other use for it, 5 ms

    logging.getLogger("npugx_cache").debug("%s", text)
