"""The sections of the text of an entry that a reader may ask for."""

from __future__ import annotations

from npugx_cache.entry.view import stored_text

STORED = {
    "key": stored_text.KEY,
    "source": stored_text.SOURCE,
    "passes": stored_text.PASSES,
    "inputs": stored_text.INPUTS,
    "code": stored_text.CODE,
    "frame": stored_text.FRAME,
}
"""The sections that are parts of the stored text."""

OVERVIEW = "overview"
"""The summary, the graph, and the guards of the call, as one file that runs."""

ALL = "all"
"""The stored text, which has everything and folds nothing."""

SECTIONS = (OVERVIEW, "summary", "graph", "guards", *STORED, ALL)
"""What a reader may ask for."""
