"""`npugx-cache misses`: what the journal holds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from npugx_cache.cli import output
from npugx_cache.cli.filters import names_function
from npugx_cache.cli.opening import load_settings, open_existing, open_journal
from npugx_cache.cli.table import Column, lay_out, terminal_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npugx_cache.store import JournalLine

_SHOWN_DIGITS = 12


def print_misses(
    directory: str | None,
    form: str,
    *,
    since: float | None,
    function: str | None,
    limit: int | None,
) -> None:
    lines = open_journal(directory).load(0.0 if since is None else time.time() - since)
    if not lines:
        open_existing(directory, "readonly")  # a folder without a cache is a typing mistake
    if function is not None:
        lines = [line for line in lines if names_function(function, line.function)]
    shown = lines[:limit]
    if form == "json":
        output.print_json(
            {"misses": [_describe_line(line) for line in shown], "total": total(lines)}
        )
    elif form == "csv":
        _print_csv(shown)
    else:
        _print_table(shown)
        if len(shown) < len(lines):
            click.echo(f"these are the first {len(shown)} of:")
        root = output.in_line(str(load_settings(directory).cache_dir))
        click.echo(f"{_sentence(lines)} lost in {root}")


def total(lines: Sequence[JournalLine]) -> dict[str, float]:
    misses = [line for line in lines if line.outcome == "miss"]
    return {
        "misses": len(misses),
        "bypasses": len(lines) - len(misses),
        "seconds_lost": sum(line.seconds for line in lines),
    }


def _describe_line(line: JournalLine) -> dict[str, object]:
    return {**line._asdict(), "reasons": list(line.reasons)}


def _print_table(lines: Sequence[JournalLine]) -> None:
    if not lines:
        return
    table = lay_out(_columns(lines), order=range(len(lines)), width=terminal_width())
    heading, *rows = table.lines
    click.echo(heading)
    for line, row in zip(lines, rows, strict=True):
        click.echo(row)
        for reason in line.reasons:
            click.echo(f"    {output.in_line(reason)}")
    if table.left_out:
        click.echo(f"not shown here: {', '.join(table.left_out)} (--format csv has all)")


def _columns(lines: Sequence[JournalLine]) -> list[Column]:
    lost = [output.seconds(line.seconds) if line.outcome == "miss" else "-" for line in lines]
    functions = output.in_lines([line.function or "?" for line in lines])
    ids = [[line.nearest[:_SHOWN_DIGITS] or "-" for line in lines]]
    ids.append([line.stored[:_SHOWN_DIGITS] or "-" for line in lines])
    nearest, stored = map(output.in_lines, ids)
    return [
        Column("TIME", [output.moment(line.time) for line in lines]),
        Column("FUNCTION", functions, least=16, keeps_end=True),
        Column("OUTCOME", [line.outcome for line in lines]),
        Column("LOST", lost, right=True, leaves=1),
        Column("PROCESS", list(map(_process, lines)), leaves=4),
        Column("NEAREST", nearest, leaves=2),
        Column("STORED AS", stored, leaves=3),
    ]


def _process(line: JournalLine) -> str:
    return f"{line.pid}" if line.rank is None else f"{line.pid} rank {line.rank}"


def _print_csv(lines: Sequence[JournalLine]) -> None:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("time", "function", "outcome", "seconds", "pid", "rank", "nearest", "stored")
    writer.writerow([*names, "readonly", "reasons"])
    for line in lines:
        row = line._asdict()
        cells = [row[name] for name in (*names, "readonly")] + ["; ".join(line.reasons)]
        writer.writerow([output.in_line(cell) if isinstance(cell, str) else cell for cell in cells])
    click.echo(text.getvalue(), nl=False)


def _sentence(lines: Sequence[JournalLine]) -> str:
    numbers = total(lines)
    misses = output.count(numbers["misses"], "miss", "misses")
    bypasses = output.count(numbers["bypasses"], "bypass", "bypasses")
    return f"{misses}, {bypasses}, {output.seconds(numbers['seconds_lost'])} of compiling"
