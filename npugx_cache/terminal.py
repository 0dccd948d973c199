"""Makes text from a store safe to show on a terminal."""

from __future__ import annotations

_KEPT = "\n\t"


def harmless(text: str, *, kept: str = _KEPT) -> str:
    """Replace control characters, because text from a store must not steer a terminal.

    Bidirectional overrides are replaced as well: they show code in another order than it runs.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else "\N{REPLACEMENT CHARACTER}" for c in text)
