"""Counts the hits of each entry and notes its last use, as derived data on this host."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from npugx_cache.records import NamedTuple
from npugx_cache.store.format.layout import is_digest
from npugx_cache.store.upkeep.derived import Derived, debug

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_MAX_ROWS = 1 << 16
_HOURS = "hours"
"""The row that counts all hits by the hour; each other row is a shard."""
_HOUR = 3600
_MAX_HOURS = 24 * 31
_WRONG_CLOCK = 24 * _HOUR
"""A time that is so far ahead of another one was noted under a wrong clock."""


class Use(NamedTuple):
    hits: int = 0
    last_used: float = 0.0

    def plus(self, later: Use) -> Use:
        """Add hits that were counted later, by this host's clock as it was then."""
        last_used = max(self.last_used, later.last_used)
        if last_used - later.last_used > _WRONG_CLOCK:  # it would be the last use for good
            last_used = later.last_used
        return Use(hits=self.hits + later.hits, last_used=last_used)


class Usage:
    """The hit counters of one store.

    One value holds the counters of a whole shard, because reading 100,000 rows would take seconds.
    """

    def __init__(self, root: str, state: Path) -> None:
        self._derived = Derived("usage", root, state)

    def add(self, uses: Mapping[str, Use]) -> None:
        with (
            self._derived.harmless("storing"),
            self._derived.open_database() as cache,
            cache.transact(),
        ):
            for shard, entries in _by_shard(uses).items():
                rows = _read(cache, shard)
                for entry in entries:
                    rows[entry] = rows.get(entry, Use()).plus(uses[entry])
                _store(cache, shard, rows)
            hours = _hours(_read_row(cache, _HOURS))
            for use in uses.values():
                hour = int(use.last_used) // _HOUR
                hours[hour] = hours.get(hour, 0) + use.hits
            kept = sorted(hours.items())[-_MAX_HOURS:]
            cache.set(_HOURS, {str(hour): hits for hour, hits in kept})

    def hits_since(self, when: float) -> int:
        """Count the hits of the hour in which a time lies, and of later ones."""
        start = int(when) // _HOUR * _HOUR
        return sum(hits for hour, hits in self.hits_by_hour().items() if hour >= start)

    def hits_by_hour(self) -> dict[int, int]:
        """The hits of at most a month, by the seconds since the epoch at which an hour begins.

        Hits of the future, which were counted under a wrong clock, are left out.
        """
        rows = dict(self._derived.rows())
        hours = _hours(_decode_value(rows.get(_HOURS))).items()
        newest = time.time() + _HOUR
        return {hour * _HOUR: hits for hour, hits in hours if hour * _HOUR <= newest}

    def forget(self, entries: Iterable[str]) -> None:
        if not self._derived.exists():
            return
        with self._derived.harmless("removing"), self._derived.open_database() as cache:
            for shard, gone in _by_shard(entries).items():
                with cache.transact():
                    rows = _read(cache, shard)
                    for entry in gone:
                        rows.pop(entry, None)
                    _store(cache, shard, rows)

    def reset(self) -> None:
        """Count from zero again. The last uses stay, because they decide what is pruned first."""
        if not self._derived.exists():
            return
        with (
            self._derived.harmless("resetting"),
            self._derived.open_database() as cache,
            cache.transact(),
        ):
            for shard in _by_shard(self.load()):
                rows = _read(cache, shard)
                _store(cache, shard, {entry: use._replace(hits=0) for entry, use in rows.items()})
            cache.delete(_HOURS)

    def load(self) -> dict[str, Use]:
        uses: dict[str, Use] = {}
        for _, value in self._derived.rows():
            uses.update(_rows(_decode_value(value)))
        return uses


def _by_shard(entries: Iterable[str]) -> dict[str, list[str]]:
    shards: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        shards[entry[:2]].append(entry)
    return shards


def _read(cache: Any, shard: object) -> dict[str, Use]:
    return _rows(_read_row(cache, shard))


def _read_row(cache: Any, key: object) -> object:
    try:
        return cache.get(key)
    except (TypeError, ValueError) as error:
        # Read as empty, so that the next write replaces it.
        debug(f"usage counters of {key!r} dropped: {error}")
        return None


def _hours(value: object) -> dict[int, int]:
    """Return the valid counts of hits by the hour in a stored value, without the rest."""
    hours: dict[int, int] = {}
    for hour, hits in value.items() if isinstance(value, dict) else ():
        if isinstance(hour, str) and hour.isdecimal() and isinstance(hits, int) and hits >= 0:
            hours[int(hour)] = hits
    return hours


def _decode_value(value: object) -> object:
    from npugx_cache.store.format.plain import unpack

    try:
        return unpack(value) if isinstance(value, bytes) else None
    except ValueError as error:
        debug(f"usage counters dropped: {error}")
        return None


def _rows(value: object) -> dict[str, Use]:
    """Return the valid counters in a stored value, without the rest."""
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
