"""The stored text of an entry, and its parts. `entry.readable` writes the text."""

from __future__ import annotations

from typing import NamedTuple

KEY = "What the entry was made for (a change of any of these is a miss)"
SOURCE = "Source that the trace went through"
GUARDS = "Guards: what must hold for the graph to be valid"
PASSES = "Passes, in the order they ran"
INPUTS = "Inputs and parameters of the graph"
CODE = "Graph, as the Python that runs"
FRAME = "Caller frame: reads the inputs, calls forward, rebuilds outputs, replays effects"

MARK = "# ---- "
_FIRST, _OTHER = "    return (", "        and "


class StoredText(NamedTuple):
    title: str
    parts: dict[str, list[str]]

    def comments(self, part: str) -> list[str]:
        """The lines of a part that is a comment, without the sign."""
        lines = (line.removeprefix("#").removeprefix(" ") for line in self.parts.get(part, ()))
        return [line for line in lines if line and line != "none"]

    @property
    def guards(self) -> list[str]:
        """The checks, as they are stored. A check on several lines is one text."""
        found: list[str] = []
        inside = False
        for line in self.parts.get(GUARDS, ()):
            if line == _FIRST:
                inside = True
            elif line == "    )":
                inside = False
            elif inside and line.startswith(_OTHER):
                found.append(line.removeprefix(_OTHER))
            elif inside and not found:
                found.append(line.strip())
            elif inside:
                found[-1] += f"\n{line}"
        return found


def parse_text(text: str) -> StoredText | None:
    """The parts of a stored text; None if it is none that has them."""
    lines = text.split("\n")
    parts: dict[str, list[str]] = {}
    part: list[str] = []
    for line in lines:
        if line.startswith(MARK):
            part = parts.setdefault(line.removeprefix(MARK), [])
        else:
            part.append(line)
    if not lines or KEY not in parts or GUARDS not in parts:
        return None
    return StoredText(
        lines[0].removeprefix("# "), {name: _strip_blank_lines(p) for name, p in parts.items()}
    )


def _strip_blank_lines(lines: list[str]) -> list[str]:
    while lines and not lines[-1]:
        lines.pop()
    return lines
