"""What a report shows of a store: values that the other commands make as well."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from npugx_cache.cli.differing import EntryDifference, difference
from npugx_cache.cli.listing import Choice, Listing, listing
from npugx_cache.cli.opening import Failure
from npugx_cache.cli.report import history
from npugx_cache.cli.statistics import Lookups, counts, lookups_since
from npugx_cache.store import Miss
from npugx_cache.store.upkeep.journal import MAX_AGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from npugx_cache.store import FolderStore, Journal, JournalLine, Manifest

MAX_PAIRS = 50


class Pair(NamedTuple):
    """Two entries of one function, the older one first. `found` is why they can't be compared."""

    first: Mapping[str, Any]
    second: Mapping[str, Any]
    found: EntryDifference | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A store as a report shows it.

    numbers, lookups: what `stats` gives. listed: what `ls` gives. days: the store over time.
    lines: the journal, newest first.
    pairs: neighbours in time of one function, the newest first; `left_out` more are not compared.
    """

    root: str
    numbers: Mapping[str, float]
    lookups: Lookups
    listed: Listing
    days: tuple[history.Day, ...]
    lines: Sequence[JournalLine]
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
    left_out: int


def read(store: FolderStore, journal: Journal, choice: Choice) -> Contents:
    overview, uses = store.overview()
    now = time.time()
    start = now - MAX_AGE
    lines = journal.load(start)
    listed = listing(overview, uses, store, choice)
    pairs = _neighbours(listed.rows)
    return Contents(
        root=str(store.root),
        numbers=counts(store, overview, uses),
        lookups=lookups_since(store, lines, start),
        listed=listed,
        days=history.days(overview.columns, store.hits_by_hour(), lines, now),
        lines=lines,
        pairs=pairs[:MAX_PAIRS],
        left_out=max(0, len(pairs) - MAX_PAIRS),
    )


def compare_entries(
    store: FolderStore, first: Mapping[str, Any], second: Mapping[str, Any]
) -> Pair:
    manifests: list[Manifest] = []
    for row in (first, second):
        manifest = store.find(str(row["entry"]))
        if isinstance(manifest, Miss):
            return Pair(first, second, manifest.reason)
        manifests.append(manifest)
    try:
        return Pair(first, second, difference(store, *manifests))
    except Failure as error:
        return Pair(first, second, error.message)


def _neighbours(
    rows: Iterable[Mapping[str, Any]],
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each entry with the one that was made before it of the same function, the newest first."""
    before: dict[str, Mapping[str, Any]] = {}
    found = []
    for row in sorted(rows, key=lambda row: float(row["created"])):
        function = str(row.get("function", ""))
        if function in before:
            found.append((before[function], row))
        before[function] = row
    return found[::-1]
