"""Makes text from a store safe to show on a terminal."""

from __future__ import annotations

import re

_KEPT = "\n\t"
_ENCODING = re.compile(r"coding(?=[:=])")


def harmless(text: str, *, kept: str = _KEPT) -> str:
    """Replace control characters, because text from a store must not steer a terminal.

    Bidirectional overrides are replaced as well: they show code in another order than it runs.
    """
    if "\n" in kept:  # most lines have no such sign, and a look at each sign takes long
        return "\n".join([_harmless(line, kept) for line in text.split("\n")])
    return _harmless(text, kept)


def _harmless(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else "\N{REPLACEMENT CHARACTER}" for c in text)


def one_line(text: str) -> str:
    """The text on one line, for a comment: Python and `str.splitlines` end lines at many signs."""
    return " ".join(text.splitlines())


def in_utf8(text: str) -> str:
    """The text of a Python file of which no comment names another encoding.

    In `# coding: utf-7` on the first two lines, a later comment could hold the end of its line.
    """
    lines = text.split("\n", 2)
    return "\n".join([*(_ENCODING.sub("coding ", line) for line in lines[:2]), *lines[2:]])
