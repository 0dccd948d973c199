"""What the page of one entry shows, from what the entry stores."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from npugx_cache.cli import output
from npugx_cache.cli.showing import captured_graphs
from npugx_cache.entry.view import drawing, given, stored_text, summary
from npugx_cache.entry.view.page import page as text_page
from npugx_cache.errors import CorruptEntry
from npugx_cache.store import Miss

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npugx_cache.store import FolderStore, JournalLine, Manifest

COLOURED = ("graph", "guards")
"""The sections of `readable` that are Python."""

PLAIN = ("key", "source", "passes", "inputs")
"""Those that are lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPage:
    """One entry as its page shows it.

    row: what `ls` knows of it. fault: why the rest can't be read, or "".
    sections: texts as `readable` gives them, by their names.
    compiled: the line of the journal about the compile that stored the entry.
    misses: lines of lookups that this entry fitted best, and that it did not serve.
    """

    row: Mapping[str, Any]
    manifest: Manifest | None = None
    fault: str = ""
    summary: tuple[tuple[str, str], ...] = ()
    sections: Mapping[str, str] = field(default_factory=dict)
    drawing: drawing.Drawing | None = None
    captured: Sequence[Mapping[str, Any]] = ()
    compiled: JournalLine | None = None
    misses: Sequence[JournalLine] = ()


def entry_page(
    store: FolderStore, row: Mapping[str, Any], lines: Sequence[JournalLine]
) -> EntryPage:
    """Read one entry. A fault of the entry is a text of the page."""
    entry = str(row["entry"])
    page = EntryPage(
        row=row,
        compiled=next((line for line in lines if line.stored == entry), None),
        misses=[line for line in lines if line.nearest == entry],
    )
    manifest = store.find(entry)
    if isinstance(manifest, Miss):
        return replace(page, fault=manifest.reason)
    page = replace(page, manifest=manifest)
    if manifest.kind not in ("graph", "piece"):
        return page
    try:
        return replace(page, **_contents(store, manifest))
    except CorruptEntry as error:
        return replace(page, fault=str(error))
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        # A stranger can store parts that can be decoded and that make no sense together.
        return replace(page, fault=f"its parts make no sense together: {error!r}")


def _contents(store: FolderStore, manifest: Manifest) -> dict[str, Any]:
    from npugx_cache.entry.readable import decode_entry

    stored = decode_entry(store, manifest)
    captured = captured_graphs(store, manifest.entry)
    if isinstance(stored, str):
        return {"sections": {"all": stored}, "captured": captured}
    drawn = None
    if stored.program is not None:
        inputs = given.inputs_of(stored.program, stored.text.comments(stored_text.INPUTS))
        drawn = drawing.drawing(stored.program, inputs)
    return {
        "summary": tuple(summary.parse_summary(text_page(stored, "summary"))),
        "sections": {name: text_page(stored, name) for name in (*COLOURED, *PLAIN)},
        "drawing": drawn,
        "captured": captured,
    }


def drawn_data(drawn: drawing.Drawing) -> dict[str, Any]:
    """A drawing as the script of the page takes it. Texts are harmless, each box in its line."""

    def as_line(text: str) -> str:
        return output.in_line(text)

    return {
        "nodes": [
            {
                "title": as_line(node.title),
                "kind": node.kind,
                "parent": node.parent,
                "copies": node.copies,
                "about": [[name, as_line(value)] for name, value in node.about],
            }
            for node in drawn.nodes
        ],
        "edges": [[edge.source, edge.target, edge.again] for edge in drawn.edges],
    }
