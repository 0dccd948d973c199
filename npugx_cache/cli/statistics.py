"""`npugx-cache stats`."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, TypedDict

import click

from npugx_cache.cli import output, remote
from npugx_cache.cli.missing import total
from npugx_cache.cli.opening import load_settings, open_existing, open_journal
from npugx_cache.store.format.layout import is_quarantined, is_temporary, listdir
from npugx_cache.store.upkeep.index import Overview
from npugx_cache.store.upkeep.journal import MAX_AGE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npugx_cache.store import FolderStore, JournalLine
    from npugx_cache.store.upkeep.usage import Use

_TOP = 5


class _Reason(TypedDict):
    count: int
    reason: str


class Lookups(TypedDict):
    """What lookups came to since a time. `hit_rate` is None if no lookup was counted.

    Hits are counted by the hour, from the hour of `since` on. A process that may not write the
    store counts none, so its misses are left out of the rate.
    """

    since: float
    hits: int
    misses: float
    bypasses: float
    hit_rate: float | None
    seconds_lost: float
    top_reasons: list[_Reason]


def print_stats(directory: str | None, form: str, since: float | None, *, reset: bool) -> None:
    """Print the counts; with `reset`, count from zero afterwards."""
    store = open_existing(directory, "readonly")
    overview, uses = (Overview(), {}) if store is None else store.overview()
    settings = load_settings(directory)
    root = settings.cache_dir if store is None else store.root
    numbers = counts(store, overview, uses)
    start = time.time() - (MAX_AGE if since is None else min(since, MAX_AGE))
    journal = open_journal(directory)
    lookups = lookups_since(store, journal.load(start), start)
    if reset:
        journal.clear()
        if store is not None:
            store.reset_hits()
    if form == "json":
        place = {"root": str(root), "remote": remote.shown_address(settings)}
        output.print_json({**place, **numbers, "lookups": lookups})
        return
    click.echo(output.in_line(str(root)))
    for name, number in numbers.items():
        click.echo(f"  {name.replace('_', ' '):<16} {number_text(name, number)}")
    remote.say(settings, remote.NOT_COUNTED)
    _print_lookups(lookups)
    if reset:
        click.echo("hits, misses and bypasses of this user on this host now count from zero")


def counts(
    store: FolderStore | None, overview: Overview, uses: Mapping[str, Use]
) -> dict[str, float]:
    """What the store holds, and what its entries saved."""
    kinds = overview.columns.texts("kind")
    costs = overview.columns.numbers("cost_seconds")
    entries = overview.columns.texts("entry")
    used = [(uses[e], cost) for e, cost in zip(entries, costs, strict=True) if e in uses]
    numbers: dict[str, float] = {
        "entries": len(kinds),
        "bypasses": kinds.count("bypass"),
        "unreadable": len(overview.refused),
        "blobs": overview.blobs,
        "size": overview.size,
        "disk_size": overview.disk_bytes,
        "hits": sum(use.hits for use, _ in used),
        "never_hit": len(kinds) - sum(use.hits > 0 for use, _ in used),
        "compile_seconds": sum(costs),
        "saved_seconds": sum(use.hits * cost for use, cost in used),
    }
    if store is not None:
        names = listdir(store.folder, store.folder.part("quarantine"))
        bad = [name for name in names if is_quarantined(name) and not name.endswith(".reason")]
        numbers["quarantined"] = len(bad)
        unfinished = listdir(store.folder, store.folder.part("tmp"))
        numbers["temporaries"] = len(list(filter(is_temporary, unfinished)))
    return numbers


def lookups_since(store: FolderStore | None, lines: list[JournalLine], since: float) -> Lookups:
    """What the lookups came to of which the journal has these lines."""
    hits = 0 if store is None else store.hits_since(since)
    found = total(lines)
    counted = sum(line.outcome == "miss" and not line.readonly for line in lines)
    reasons = Counter(reason for line in lines for reason in dict.fromkeys(line.reasons))
    return {
        "since": since,
        "hits": hits,
        "misses": found["misses"],
        "bypasses": found["bypasses"],
        "hit_rate": hits / (hits + counted) if hits + counted else None,
        "seconds_lost": found["seconds_lost"],
        "top_reasons": [
            {"count": count, "reason": reason} for reason, count in reasons.most_common(_TOP)
        ],
    }


def _print_lookups(found: Lookups) -> None:
    rate = "-" if found["hit_rate"] is None else f"{found['hit_rate']:.0%}"
    click.echo(f"since {output.moment(found['since'])}, on this host")
    click.echo(f"  {'hits':<16} {found['hits']}")
    click.echo(f"  {'misses':<16} {found['misses']:.0f}")
    click.echo(f"  {'bypasses':<16} {found['bypasses']:.0f}")
    click.echo(f"  {'hit rate':<16} {rate}")
    click.echo(f"  {'seconds lost':<16} {output.seconds(found['seconds_lost'])}")
    for row in found["top_reasons"]:
        click.echo(f"  {row['count']:>6} x {output.in_line(row['reason'])}")


def number_text(name: str, number: float) -> str:
    if name.endswith("size"):
        return output.size(number)
    return output.seconds(number) if name.endswith("seconds") else f"{number:.0f}"
