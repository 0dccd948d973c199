"""`npugx-cache ls`. Works by columns: a call per cell would take seconds for 100,000 entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from npugx_cache.cli import output
from npugx_cache.cli.filters import parse, selected
from npugx_cache.cli.opening import load_settings, open_existing
from npugx_cache.store.upkeep.index import Overview

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from npugx_cache.store import Refused
    from npugx_cache.store.upkeep.index import Columns, Row
    from npugx_cache.store.upkeep.usage import Use

T = TypeVar("T")
_SHOWN_DIGITS = 12
_TITLES = (
    "ENTRY",
    "KIND",
    "FUNCTION",
    "CREATED",
    "USED",
    "SIZE",
    "HITS",
    "SAVED",
    "INPUTS / REASON",
    "ENVIRONMENT",
)
_RIGHT = frozenset({"SIZE", "HITS", "SAVED"})
_NOTES = frozenset({"bypass", "set-up"})
"""The kinds of entries that hold no graph, and that save nothing by themselves."""


def print_listing(
    directory: str | None, form: str, sort: str, *, filters: Sequence[str], limit: int | None
) -> None:
    tests = [parse(text) for text in filters]
    store = open_existing(directory, "readonly")
    overview, uses = (Overview(), {}) if store is None else store.overview()
    seen = _Seen(overview.columns, uses)
    order = _order(seen, sort, selected(store, overview, uses, tests))
    total = _total(seen, order, overview, filtered=bool(tests))
    shown = order[:limit]
    root = load_settings(directory).cache_dir if store is None else store.root
    if form == "json":
        _print_json(seen, shown, overview.refused, total)
        return
    if shown:
        click.echo(_table(seen, shown))
    for bad in overview.refused:
        name = bad.entry[:_SHOWN_DIGITS] or f"key {bad.key[:_SHOWN_DIGITS]}"
        click.echo(f"{name}  unreadable: {output.in_line(bad.reason)}")
    if len(shown) < len(order):
        click.echo(f"these are the first {len(shown)} of:")
    where = f"{root}, which does not exist yet" if store is None else str(root)
    click.echo(f"{_sentence(total)} in {output.in_line(where)}")


class _Seen:
    """The columns of the index, and the hit counters as further columns."""

    def __init__(self, columns: Columns, uses: Mapping[str, Use]) -> None:
        self.columns = columns
        self.entry = columns.texts("entry")
        self.kind = columns.texts("kind")
        self.cost = columns.numbers("cost_seconds")
        self.size = columns.numbers("stored_bytes")
        self.used = columns.numbers("mtime")
        self.hits = [0] * columns.count
        if not uses:
            return
        for at, entry in enumerate(self.entry):
            use = uses.get(entry)
            if use is not None:
                self.hits[at] = use.hits
                self.used[at] = max(self.used[at], use.last_used)

    def saved(self, at: int) -> float:
        return 0.0 if self.kind[at] in _NOTES else self.hits[at] * self.cost[at]


def _order(seen: _Seen, sort: str, chosen: Sequence[int]) -> list[int]:
    """The positions of the entries to show, first to last."""
    columns: dict[str, Sequence[float]] = {
        "used": seen.used,
        "size": seen.size,
        "hits": seen.hits,
    }
    by = columns[sort] if sort in columns else seen.columns.numbers(sort)
    return sorted(chosen, key=by.__getitem__, reverse=True)


def _table(seen: _Seen, order: list[int]) -> str:
    """The table of the entries in `order`. All entries are formatted first, and sorted as lines."""
    if len(order) == seen.columns.count:
        return output.table(_TITLES, _cells(seen, range(len(order))), right=_RIGHT, order=order)
    return output.table(_TITLES, _cells(seen, order), right=_RIGHT, order=range(len(order)))


def _cells(seen: _Seen, chosen: Sequence[int]) -> list[list[str]]:
    moments = _Memo(lambda minute: output.moment(minute * 60.0))
    sizes = _Memo(output.size)

    def of(column: list[T]) -> list[T]:
        return column if len(chosen) == len(column) else [column[at] for at in chosen]

    def texts(name: str) -> list[str]:
        return output.in_lines(of(seen.columns.texts(name)))

    kinds = of(seen.kind)
    hits = ["0"] * len(chosen)
    saved = ["-" if kind in _NOTES else "0.0 s" for kind in kinds]
    inputs = texts("signature")
    for row, number in enumerate(of(seen.hits)):
        if number:
            hits[row] = str(number)
            saved[row] = "-" if kinds[row] in _NOTES else output.seconds(seen.saved(chosen[row]))
    if any(kind in kinds for kind in _NOTES):
        pairs = zip(kinds, inputs, texts("reason"), strict=True)
        inputs = [reason if kind in _NOTES else text for kind, text, reason in pairs]
    return [
        [entry[:_SHOWN_DIGITS] for entry in of(seen.entry)],
        kinds,
        [text or "?" for text in texts("function")],
        [moments[stamp // 60] for stamp in of(seen.columns.numbers("created"))],
        [moments[stamp // 60] for stamp in of(seen.used)],
        [sizes[number] for number in of(seen.size)],
        hits,
        saved,
        inputs,
        texts("environment"),
    ]


class _Memo(dict[float, str]):
    """Formats each number only once."""

    def __init__(self, make: Callable[[float], str]) -> None:
        self._make = make

    def __missing__(self, key: float) -> str:
        text = self[key] = self._make(key)
        return text


def _print_json(
    seen: _Seen, order: list[int], refused: Iterable[Refused], total: dict[str, float]
) -> None:
    rows = seen.columns.rows()
    output.print_json(
        {
            "entries": [_as_json(seen, at, rows[at]) for at in order],
            "unreadable": [
                {"entry": item.entry, "key": item.key, "reason": item.reason} for item in refused
            ],
            "total": total,
        }
    )


def _as_json(seen: _Seen, at: int, row: Row) -> dict[str, object]:
    texts = {
        name: text
        for name in ("function", "signature", "reason", "environment")
        if (text := getattr(row, name))
    }
    return {
        "entry": row.entry,
        "key": row.key,
        "identity": row.identity,
        "kind": row.kind,
        **texts,
        "created": row.created,
        "last_used": seen.used[at],
        "size": row.stored_bytes,
        "hits": seen.hits[at],
        "cost_seconds": row.cost_seconds,
        "saved_seconds": seen.saved(at),
    }


def _total(
    seen: _Seen, order: list[int], overview: Overview, *, filtered: bool
) -> dict[str, float]:
    hit = [at for at in order if seen.hits[at]] if any(seen.hits) else []
    bypasses = seen.kind.count("bypass")
    return {
        "entries": len(order),
        "bypasses": sum(seen.kind[at] == "bypass" for at in order) if filtered else bypasses,
        "unreadable": len(overview.refused),
        # The size of the store counts a shared blob once. Of a selection only the sum over its
        # entries is known, which counts such a blob once for each entry.
        "size": int(sum(seen.size[at] for at in order)) if filtered else overview.size,
        "hits": sum(seen.hits[at] for at in hit),
        "saved_seconds": sum(seen.saved(at) for at in hit),
    }


def _sentence(total: dict[str, float]) -> str:
    entries = output.count(total["entries"], "entry", "entries")
    bypasses = output.count(total["bypasses"], "bypass", "bypasses")
    return (
        f"{entries} ({bypasses}), {total['unreadable']:.0f} unreadable, "
        f"{output.size(total['size'])}, {output.count(total['hits'], 'hit', 'hits')}, "
        f"{output.seconds(total['saved_seconds'])} of compiling saved"
    )
