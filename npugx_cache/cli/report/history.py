"""The store over time: what was made and looked up on each day."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from npugx_cache.store import JournalLine
    from npugx_cache.store.upkeep.index import Columns

MAX_DAYS = 366


class Day(NamedTuple):
    """One day of this host's time.

    `made` entries are still there; `entries` and `size` are those of all made up to this day.
    """

    day: date
    made: int
    entries: int
    size: float
    hits: int
    misses: int
    bypasses: int

    @property
    def stamp(self) -> float:
        """The day as seconds since the epoch, in a time without zones."""
        return datetime(*self.day.timetuple()[:3], tzinfo=UTC).timestamp()


def days(
    columns: Columns, hits: Mapping[int, int], lines: Sequence[JournalLine], now: float
) -> tuple[Day, ...]:
    """Each day from the first of which anything is known to that of `now`, at most a year."""
    made: Counter[date] = Counter()
    sizes: Counter[date] = Counter()
    created = columns.numbers("created")
    for stamp, size in zip(created, columns.numbers("stored_bytes"), strict=True):
        day = _day(stamp)
        made[day] += 1
        sizes[day] += int(size)
    found: Counter[date] = Counter()
    for hour, count in hits.items():
        found[_day(hour)] += count
    missed = Counter(_day(line.time) for line in lines if line.outcome == "miss")
    bypassed = Counter(_day(line.time) for line in lines if line.outcome != "miss")
    today = _day(now)
    known = [day for days in (made, found, missed, bypassed) for day in days if day <= today]
    first = max(min(known, default=today), today - timedelta(days=MAX_DAYS - 1))
    entries = sum(count for day, count in made.items() if day < first)
    size = sum(count for day, count in sizes.items() if day < first)
    rows = []
    for day in _from(first, today):
        entries += made[day]
        size += sizes[day]
        lookups = found[day], missed[day], bypassed[day]
        rows.append(Day(day, made[day], entries, size, *lookups))
    return tuple(rows)


def _from(first: date, last: date) -> Iterable[date]:
    return (first + timedelta(days=at) for at in range((last - first).days + 1))


def _day(stamp: float) -> date:
    try:
        return datetime.fromtimestamp(stamp).date()  # noqa: DTZ006 - a day of this host
    except (ValueError, OverflowError, OSError):
        return date.max  # a stranger wrote the time
