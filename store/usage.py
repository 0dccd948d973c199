"""Hit counters and last-use stamps: derived, host-local, never on the shared path.

SQLite over a network file system corrupts, so they live in the user's state folder, one
sub-folder per store. Whatever fails here is a DEBUG line: a lost counter is not worth more.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npugx_cache.store.layout import is_digest

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_TIMEOUT = 1.0
_DATABASE = "cache.db"
_MAX_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    hits: int = 0
    last_used: float = 0.0

    def plus(self, other: Use) -> Use:
        last_used = max(self.last_used, other.last_used)
        return Use(hits=self.hits + other.hits, last_used=last_used)


class Usage:
    """The counters of one store. Opens its database for each operation: all are off the hit path.

    One value holds a whole shard of entries: iterating 100,000 rows would take seconds.
    """

    def __init__(self, root: Path, state: Path | None = None) -> None:
        self._root = root
        self._state = state

    def add(self, uses: Mapping[str, Use]) -> None:
        with _harmless("storing", self), self._open() as cache:
            for shard, entries in _by_shard(uses).items():
                with cache.transact():
                    rows = _read(cache, shard)
                    for entry in entries:
                        rows[entry] = rows.get(entry, Use()).plus(uses[entry])
                    _store(cache, shard, rows)

    def forget(self, entries: Iterable[str]) -> None:
        if not self._exists():
            return
        with _harmless("removing", self), self._open() as cache:
            for shard, gone in _by_shard(entries).items():
                with cache.transact():
                    rows = _read(cache, shard)
                    for entry in gone:
                        rows.pop(entry, None)
                    _store(cache, shard, rows)

    def load(self) -> dict[str, Use]:
        # Without a database there is nothing to import diskcache for.
        if not self._exists():
            return {}
        uses: dict[str, Use] = {}
        with _harmless("reading", self), self._open_to_read() as database:
            query = "SELECT value FROM Cache WHERE raw = 1 AND mode = 1 AND filename IS NULL"
            for (value,) in database.execute(query):
                uses.update(_rows(_decoded(value)))
        return uses

    def reset(self) -> None:
        """Throw away a database that is none."""
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                (self._folder() / f"{_DATABASE}{suffix}").unlink()

    def _folder(self) -> Path:
        state = self._state
        if state is None:
            from platformdirs import user_state_path

            state = user_state_path("npugx_cache")
        name = os.fsencode(os.path.realpath(self._root))
        return state / "usage" / hashlib.sha256(name).hexdigest()[:16]

    def _exists(self) -> bool:
        return (self._folder() / _DATABASE).is_file()

    @contextlib.contextmanager
    def _open_to_read(self) -> Iterator[sqlite3.Connection]:
        """Open without diskcache, which writes settings on every opening and takes 20 ms."""
        import sqlite3

        uri = (self._folder() / _DATABASE).as_uri()
        database = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=_TIMEOUT)
        try:
            yield database
        finally:
            database.close()

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        import diskcache

        from npugx_cache.store.plain_disk import MAX_VALUE, PlainDisk

        folder = self._folder()
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


@contextlib.contextmanager
def _harmless(doing: str, usage: Usage) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001  # diskcache's own failures are of every kind
        _debug(f"{doing} usage counters failed: {error!r}")
        if type(error).__name__ == "DatabaseError":
            usage.reset()


def _debug(text: str) -> None:
    import logging  # for `ls`, which has no other use for it, 5 ms

    logging.getLogger("npugx_cache").debug("%s", text)


def _by_shard(entries: Iterable[str]) -> dict[str, list[str]]:
    shards: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        shards[entry[:2]].append(entry)
    return shards


def _read(cache: Any, shard: object) -> dict[str, Use]:
    try:
        return _rows(cache.get(shard))
    except (TypeError, ValueError) as error:
        # Read as empty, so that the next write replaces it.
        _debug(f"usage counters of {shard!r} dropped: {error}")
        return {}


def _decoded(value: object) -> object:
    from npugx_cache.store.plain import unpack

    try:
        return unpack(value) if isinstance(value, bytes) else None
    except ValueError as error:
        _debug(f"usage counters dropped: {error}")
        return None


def _rows(value: object) -> dict[str, Use]:
    """Take what looks like counters from a stored value and drop the rest."""
    uses: dict[str, Use] = {}
    for entry, row in value.items() if isinstance(value, dict) else ():
        match row:
            case [int(hits), float(last_used)] if (
                is_digest(entry) and hits >= 0 and math.isfinite(last_used)
            ):
                uses[entry] = Use(hits=hits, last_used=last_used)
    return uses


def _store(cache: Any, shard: str, rows: dict[str, Use]) -> None:
    kept = sorted(rows.items(), key=lambda row: row[1].last_used)[-_MAX_ROWS:]
    if kept:
        cache.set(shard, {entry: [use.hits, use.last_used] for entry, use in kept})
    else:
        cache.delete(shard)
