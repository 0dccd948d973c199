"""Lays out tables: rows as they are for a program, or fitted to the width of a terminal."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.cli import output

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_GAP = 2


class Column(NamedTuple):
    """One column. Cells are cut to no less than `least` characters, or never if `least` is 0.

    `keeps_end`: what is cut off is the beginning. `leaves` orders the columns that are left out
    where there is no room for all: the highest number first, and 0 never.
    """

    title: str
    cells: Sequence[str]
    least: int = 0
    leaves: int = 0
    right: bool = False
    keeps_end: bool = False

    def width(self) -> int:
        return max(len(self.title), *map(len, self.cells)) if self.cells else len(self.title)


class Table(NamedTuple):
    """The lines of a table, heading included, and the titles of the columns that are left out."""

    lines: list[str]
    left_out: list[str]


def terminal_width() -> int | None:
    """The columns of the terminal that stdout is (COLUMNS counts before what it tells), or None."""
    return shutil.get_terminal_size().columns if output.on_terminal() else None


def lay_out(columns: Sequence[Column], *, order: Iterable[int], width: int | None) -> Table:
    """A table with its rows in this order, in at most so many characters a line."""
    widths = [column.width() for column in columns]
    kept = list(range(len(columns)))
    if width is not None:
        kept = _fitting(columns, widths, width)
        widths = _share_room(columns, widths, kept, width)
    formats = [f"%{'' if columns[at].right else '-'}{widths[at]}s" for at in kept]
    line = (" " * _GAP).join(formats)
    cells = [_cut(columns[at], widths[at]) for at in kept]
    rows = list(map(line.__mod__, zip(*cells, strict=True)))
    titles = line % tuple(columns[at].title for at in kept)
    lines = [shown.rstrip()[:width] for shown in (titles, *(rows[at] for at in order))]
    left_out = [column.title for at, column in enumerate(columns) if at not in kept]
    return Table(lines, left_out)


def _fitting(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """The positions of the columns that there is room for if each is as narrow as it can be."""
    kept = list(range(len(columns)))
    while True:
        narrow = [_narrowest(columns[at], widths[at]) for at in kept]
        removable = [at for at in kept if columns[at].leaves]
        if sum(narrow) + _GAP * (len(kept) - 1) <= width or not removable:
            return kept
        kept.remove(max(removable, key=lambda at: columns[at].leaves))


def _narrowest(column: Column, width: int) -> int:
    return min(width, max(column.least, len(column.title))) if column.least else width


def _share_room(
    columns: Sequence[Column], widths: Sequence[int], kept: Sequence[int], width: int
) -> list[int]:
    """The widths of the columns, where those that can be cut share the room that is left."""
    shared = list(map(_narrowest, columns, widths))
    room = width - sum(shared[at] for at in kept) - _GAP * (len(kept) - 1)
    cut = [at for at in kept if shared[at] < widths[at]]
    # The column that lacks the least comes first: what it does not need goes to the others.
    for done, at in enumerate(sorted(cut, key=lambda at: widths[at] - shared[at])):
        more = min(widths[at] - shared[at], max(0, room) // (len(cut) - done))
        shared[at] += more
        room -= more
    return shared


def _cut(column: Column, width: int) -> Sequence[str]:
    if not column.least or column.width() <= width:
        return column.cells
    if column.keeps_end:
        cut = [f"…{cell[len(cell) - width + 1 :]}" for cell in column.cells]
    else:
        cut = [f"{cell[: width - 1]}…" for cell in column.cells]
    return [
        cell if len(cell) <= width else short for cell, short in zip(column.cells, cut, strict=True)
    ]
