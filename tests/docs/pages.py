"""The pages for people, in docs/ and beside it: their code blocks, links and commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks/README.md"])
FRAGMENT = "fragment"
_FENCE = re.compile(
    r"(?:<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)


class Program(NamedTuple):
    """A Python block. `mark` is the comment in the line above the block.

    `printed` are the blocks of text below it, up to the next heading or Python block: what the
    first run prints, and what the second one does.
    """

    page: str
    line: int
    mark: str
    text: str
    printed: tuple[str, ...]


def programs(page: Path) -> list[Program]:
    text, found = page.read_text(), []
    blocks = list(_FENCE.finditer(text))
    headings = [each.start() for each in _HEADING.finditer(_without_code(text))]
    for i, block in enumerate(blocks):
        if block["language"] != "python":
            continue
        end = next((start for start in headings if start > block.end()), len(text))
        printed = []
        for later in blocks[i + 1 :]:
            if later["language"] == "python" or later.start() > end:
                break
            if later["language"] == "text":
                printed.append(later["text"])
        name = str(page.relative_to(ROOT))
        line = text.count("\n", 0, block.start("text"))
        found.append(Program(name, line, block["mark"] or "", block["text"], tuple(printed)))
    return found


def quoted(page: Path) -> list[tuple[str, str]]:
    """Each block that is marked as the text of an example, of any language: the file, the text."""
    blocks = _FENCE.finditer(page.read_text())
    marked = [(block["mark"] or "", block["text"]) for block in blocks]
    return [(mark, text) for mark, text in marked if mark.startswith("examples/")]


def _without_code(text: str) -> str:
    """The page with its code blocks blanked, so that places in it stay the same."""
    return _FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts and the site make them."""
    titles = [each["title"] for each in _HEADING.finditer(_without_code(page.read_text()))]
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


def links(page: Path) -> list[str]:
    """Where the links of a page lead that stay in the repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", _without_code(page.read_text()))
    return [link for link in found if not link.startswith(("http:", "https:", "mailto:"))]


def command_lines(page: Path) -> list[str]:
    """Everything in code, inline or in a block, that begins with the name of our command."""
    text = page.read_text()
    inline = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", _without_code(text))
    blocks = [
        line
        for block in _FENCE.finditer(text)
        if block["language"] in ("bash", "")
        for line in block["text"].splitlines()
    ]
    return [line for line in [*inline, *blocks] if "npugx-cache" in line]
