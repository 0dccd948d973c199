"""Which pieces belong to which functions, by the records beside the stored refusals.

A piece follows from its graph alone, so several functions may use it, and it names none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.entry.break_record import BreakRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npugx_cache.store import FolderStore
    from npugx_cache.store.upkeep.index import Columns


class Links(NamedTuple):
    """`functions` has the names by the entry of a piece, `pieces` the entries by that of a note."""

    functions: Mapping[str, tuple[str, ...]]
    pieces: Mapping[str, tuple[str, ...]]


def links(store: FolderStore | None, columns: Columns) -> Links:
    kinds = columns.texts("kind")
    if store is None or "piece" not in kinds:
        return Links({}, {})
    entries, names = columns.texts("entry"), columns.texts("function")
    there = set(entries)
    functions: dict[str, dict[str, None]] = {}
    pieces: dict[str, tuple[str, ...]] = {}
    for at, kind in enumerate(kinds):
        if kind != "bypass":
            continue
        recorded = BreakRecord.of(store.read_record(entries[at])).pieces
        if found := tuple(piece for piece in recorded if piece in there):
            pieces[entries[at]] = found
        for piece in found:
            functions.setdefault(piece, {})[names[at]] = None
    return Links({piece: tuple(of) for piece, of in functions.items()}, pieces)
