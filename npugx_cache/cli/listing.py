"""`npugx-cache ls`. Works by columns: a call per cell would take seconds for 100,000 entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from npugx_cache.cli import output, remote
from npugx_cache.cli.filters import parse, select_entries
from npugx_cache.cli.links import Links, links
from npugx_cache.cli.opening import load_settings, open_existing
from npugx_cache.cli.table import Column, lay_out, terminal_width
from npugx_cache.store.upkeep.index import Overview

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from npugx_cache.store import FolderStore, Refused
    from npugx_cache.store.upkeep.index import Columns, Row
    from npugx_cache.store.upkeep.usage import Use

T = TypeVar("T")
_SHOWN_DIGITS = 12
NOTES = frozenset({"bypass", "set-up"})
"""The kinds of entries that hold no graph, and that save nothing by themselves."""

_CSV = (
    "entry",
    "key",
    "identity",
    "kind",
    "function",
    "signature",
    "reason",
    "environment",
    "created",
    "last_used",
    "size",
    "hits",
    "cost_seconds",
    "saved_seconds",
)


class Choice(NamedTuple):
    """Which entries a listing shows, and in which order."""

    filters: tuple[str, ...] = ()
    sort: str = "used"
    reverse: bool = False
    limit: int | None = None


class Listing(NamedTuple):
    """The entries that a choice names, in its order: `rows` are the first ones, up to its limit.

    `total` counts all that the choice names without the limit.
    """

    rows: list[dict[str, object]]
    refused: Sequence[Refused]
    total: dict[str, float]


def listing(
    overview: Overview, uses: Mapping[str, Use], store: FolderStore, choice: Choice
) -> Listing:
    tests = [parse(text) for text in choice.filters]
    seen = _Seen(overview.columns, uses, links(store, overview.columns))
    order = _order(seen, choice, select_entries(store, overview, uses, tests))
    rows = seen.columns.rows()
    return Listing(
        [_as_json(seen, at, rows[at]) for at in order[: choice.limit]],
        overview.refused,
        _total(seen, order, overview, filtered=bool(tests)),
    )


def print_listing(directory: str | None, form: str, choice: Choice) -> None:
    """List the chosen entries. `form` is table, json, csv or ids."""
    tests = [parse(text) for text in choice.filters]
    store = open_existing(directory, "readonly")
    overview, uses = (Overview(), {}) if store is None else store.overview()
    seen = _Seen(overview.columns, uses, links(store, overview.columns))
    order = _order(seen, choice, select_entries(store, overview, uses, tests))
    shown = order[: choice.limit]
    if form == "ids":
        for at in shown:
            click.echo(seen.entry[at])
        return
    if form == "csv":
        _print_csv(seen, shown)
        return
    total = _total(seen, order, overview, filtered=bool(tests))
    settings = load_settings(directory)
    if form == "json":
        _print_json(seen, shown, overview.refused, total, remote.shown_address(settings))
        return
    if shown:
        _print_table(seen, shown)
    for bad in overview.refused:
        name = bad.entry[:_SHOWN_DIGITS] or f"key {bad.key[:_SHOWN_DIGITS]}"
        click.echo(f"{name}  unreadable: {output.in_line(bad.reason)}")
    if len(shown) < len(order):
        click.echo(f"these are the first {len(shown)} of:")
    root = settings.cache_dir if store is None else store.root
    where = f"{root}, which does not exist yet" if store is None else str(root)
    click.echo(f"{_sentence(total)} in {output.in_line(where)}")
    remote.say(settings, remote.NOT_LISTED)
    if not order:
        click.echo(_what_to_do(seen, filtered=bool(tests)))


def _what_to_do(seen: _Seen, *, filtered: bool) -> str:
    if filtered and seen.columns.count:
        return f"None of {seen.columns.count} passes the filters; without --filter all are listed."
    return (
        "A worker stores an entry when it first calls a function or a model under @cache_compile. "
        "If workers have done that, they use another folder: name it with --dir or "
        "NPUGX_CACHE_DIR."
    )


class _Seen:
    """The columns of the index, and the hit counters as further columns."""

    def __init__(self, columns: Columns, uses: Mapping[str, Use], of: Links) -> None:
        self.columns = columns
        self.links = of
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

    def functions(self) -> list[str]:
        """The names; a piece has the names of the functions that it belongs to before its own."""
        names = self.columns.texts("function")
        if not self.links.functions:
            return [*names]
        of = [", ".join(self.links.functions.get(entry, ())) for entry in self.entry]
        return [f"{of} > {name}" if of else name for of, name in zip(of, names, strict=True)]

    def saved_seconds(self, at: int) -> float:
        return 0.0 if self.kind[at] in NOTES else self.hits[at] * self.cost[at]


def _order(seen: _Seen, choice: Choice, chosen: Sequence[int]) -> list[int]:
    """The positions of the entries to show, first to last."""
    if choice.sort == "name":
        functions = seen.functions()
        return sorted(chosen, key=functions.__getitem__, reverse=choice.reverse)
    columns: dict[str, Callable[[], Sequence[float]]] = {
        "used": lambda: seen.used,
        "size": lambda: seen.size,
        "hits": lambda: seen.hits,
        "cost": lambda: seen.cost,
        "saved": lambda: list(map(seen.saved_seconds, range(seen.columns.count))),
        "created": lambda: seen.columns.numbers("created"),
    }
    by = columns[choice.sort]()
    return sorted(chosen, key=by.__getitem__, reverse=not choice.reverse)


def _print_table(seen: _Seen, order: list[int]) -> None:
    # If all entries are shown, they are formatted first, and sorted as lines.
    every = len(order) == seen.columns.count
    columns, environment = _columns(seen, range(len(order)) if every else order)
    rows = order if every else range(len(order))
    table = lay_out(columns, order=rows, width=terminal_width())
    click.echo("\n".join(table.lines))
    if environment is not None:
        click.echo(f"all made for {environment}")
    if table.left_out:
        click.echo(f"not shown here: {', '.join(table.left_out)} (--format csv has all)")


def _columns(seen: _Seen, chosen: Sequence[int]) -> tuple[list[Column], str | None]:
    """The columns of these entries, and the environment if it is the same for all of them."""
    moments = _Memo(lambda minute: output.moment(minute * 60.0))
    sizes = _Memo(output.size)

    def of(column: list[T]) -> list[T]:
        return column if len(chosen) == len(column) else [column[at] for at in chosen]

    def texts(name: str) -> list[str]:
        return output.in_lines(of(seen.columns.texts(name)))

    kinds = of(seen.kind)
    hits = ["0"] * len(chosen)
    saved = ["-" if kind in NOTES else "0.0 s" for kind in kinds]
    inputs = texts("signature")
    for row, number in enumerate(of(seen.hits)):
        if number:
            hits[row] = str(number)
            saved[row] = (
                "-" if kinds[row] in NOTES else output.seconds(seen.saved_seconds(chosen[row]))
            )
    if any(kind in kinds for kind in NOTES):
        pairs = zip(kinds, inputs, texts("reason"), strict=True)
        inputs = [reason if kind in NOTES else text for kind, text, reason in pairs]
    functions = [text or "?" for text in output.in_lines(of(seen.functions()))]
    created = [moments[stamp // 60] for stamp in of(seen.columns.numbers("created"))]
    used = [moments[stamp // 60] for stamp in of(seen.used)]
    columns = [
        Column("ENTRY", [entry[:_SHOWN_DIGITS] for entry in of(seen.entry)]),
        Column("KIND", kinds, leaves=2),
        # The end of a dotted name tells entries apart.
        Column("FUNCTION", functions, least=16, keeps_end=True),
        Column("CREATED", created, leaves=7),
        Column("USED", used, leaves=4),
        Column("SIZE", [sizes[number] for number in of(seen.size)], right=True, leaves=3),
        Column("HITS", hits, right=True, leaves=1),
        Column("SAVED", saved, right=True, leaves=5),
        Column("INPUTS / REASON", inputs, least=12),
    ]
    environments = texts("environment")
    if len(set(environments)) == 1:
        return columns, environments[0] or None
    return [*columns, Column("ENVIRONMENT", environments, least=12, leaves=6)], None


class _Memo(dict[float, str]):
    """Formats each number only once."""

    def __init__(self, make: Callable[[float], str]) -> None:
        self._make = make

    def __missing__(self, key: float) -> str:
        text = self[key] = self._make(key)
        return text


def _print_json(
    seen: _Seen,
    order: list[int],
    refused: Iterable[Refused],
    total: dict[str, float],
    remote_tier: str | None,
) -> None:
    rows = seen.columns.rows()
    output.print_json(
        {
            "entries": [_as_json(seen, at, rows[at]) for at in order],
            "unreadable": [
                {"entry": item.entry, "key": item.key, "reason": item.reason} for item in refused
            ],
            "total": total,
            "remote": remote_tier,
        }
    )


def _print_csv(seen: _Seen, order: list[int]) -> None:
    """The fields of the JSON form, one line for each entry."""
    import csv
    import io

    out = io.StringIO()
    writer = csv.DictWriter(out, _CSV, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    rows = seen.columns.rows()
    for at in order:
        fields = _as_json(seen, at, rows[at])
        # Read by programs, but also shown on terminals.
        texts = {name: output.in_line(text) for name, text in fields.items() if type(text) is str}
        writer.writerow({**fields, **texts})
    click.echo(out.getvalue(), nl=False)


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
        **_describe_links(seen.links, row.entry),
        "created": row.created,
        "last_used": seen.used[at],
        "size": row.stored_bytes,
        "hits": seen.hits[at],
        "cost_seconds": row.cost_seconds,
        "saved_seconds": seen.saved_seconds(at),
    }


def _describe_links(of: Links, entry: str) -> dict[str, object]:
    functions, pieces = of.functions.get(entry), of.pieces.get(entry)
    return {
        **({"functions": [*functions]} if functions else {}),
        **({"pieces": [*pieces]} if pieces else {}),
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
        "saved_seconds": sum(seen.saved_seconds(at) for at in hit),
    }


def _sentence(total: dict[str, float]) -> str:
    entries = output.count(total["entries"], "entry", "entries")
    bypasses = output.count(total["bypasses"], "bypass", "bypasses")
    return (
        f"{entries} ({bypasses}), {total['unreadable']:.0f} unreadable, "
        f"{output.size(total['size'])}, {output.count(total['hits'], 'hit', 'hits')}, "
        f"{output.seconds(total['saved_seconds'])} of compiling saved"
    )
