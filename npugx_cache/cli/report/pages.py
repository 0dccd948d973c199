"""Makes the pages of a report. Every text of a store goes through the escapes of the templates."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from npugx_cache.cli import output
from npugx_cache.cli.differing import NO_DIFFERENCE
from npugx_cache.cli.listing import NOTES
from npugx_cache.cli.report import contents, entries, history
from npugx_cache.cli.statistics import number_text
from npugx_cache.store.upkeep.journal import MAX_AGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npugx_cache.cli.report.contents import Contents
    from npugx_cache.store import FolderStore

_HERE = Path(__file__).parent
_DIGITS = 12
_SHOWN_MISSES = 1000
_LIGHT, _DARK = "xcode", "github-dark"
"""Styles of pygments in which each colour of code has enough contrast."""


class Pages:
    """Writes pages into one folder, and counts them."""

    def __init__(self, folder: Path, found: Contents) -> None:
        self.count = 0
        self._folder, self._found = folder, found
        self._listed = {str(row["entry"]) for row in found.listed.rows}
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "line": output.in_line,
            "size": output.size,
            "seconds": output.seconds,
            "moment": output.moment,
            "code": _colour_code,
        }
        self._templates.globals |= {
            "found": found,
            "made": output.moment(time.time()),
            "short": lambda entry: output.in_line(str(entry)[:_DIGITS]),
            "page_of": self._page_of,
            "pair_page": _pair_page,
            "number_text": number_text,
            "month": MAX_AGE / 86400,
            "notes": NOTES,
        }

    def assets(self) -> None:
        """Copy what the pages load, and write the colours of code."""
        shutil.copytree(_HERE / "assets", self._folder / "assets")
        light, dark = (
            HtmlFormatter(style=style, classprefix="c-").get_style_defs(selector)
            for style, selector in ((_LIGHT, ".code"), (_DARK, "[data-theme=dark] .code"))
        )
        text = f"{light}\n{dark}\n"
        (self._folder / "assets" / "code.css").write_text(text, encoding="utf-8")

    def index(self, faults: Mapping[str, str]) -> None:
        """The first page. `faults` says what is wrong with entries, by their ids."""
        days = self._found.days
        charts = {name: [getattr(day, name) for day in days] for name in history.Day._fields[1:]}
        charts["stamp"] = [day.stamp for day in days]
        self._write("index.html", "index.html", charts=charts, faults=faults)

    def entry(self, shown: entries.EntryPage) -> None:
        entry = shown.row["entry"]
        pairs = [pair for pair in self._found.pairs if entry in {row["entry"] for row in pair}]
        drawn = entries.drawn_data(shown.drawing) if shown.drawing is not None else None
        self._write(
            "entry.html", _entry_page(entry), shown=shown, drawn=drawn, pairs=pairs, **_SECTIONS
        )

    def differences(self, store: FolderStore, advance: Callable[[], None]) -> None:
        self._write("differences.html", "differences.html", most=contents.MAX_PAIRS)
        for first, second in self._found.pairs:
            pair = contents.compare_entries(store, first, second)
            self._write("difference.html", _pair_page(pair), pair=pair, same=NO_DIFFERENCE)
            advance()

    def misses(self) -> None:
        self._write("misses.html", "misses.html", most=_SHOWN_MISSES)

    def _write(self, template: str, name: str, **values: Any) -> None:
        text = self._templates.get_template(template).render(page=name, **values)
        (self._folder / name).write_text(text, encoding="utf-8")
        self.count += 1

    def _page_of(self, entry: str) -> str:
        """The page of an entry, or "" if the report has none."""
        return _entry_page(entry) if entry in self._listed else ""


_SECTIONS = {"coloured": entries.COLOURED, "plain": entries.PLAIN}


def _entry_page(entry: str) -> str:
    return f"entry-{entry}.html"


def _pair_page(pair: Sequence[Any]) -> str:
    first, second, *_ = pair
    return f"difference-{first['entry'][:16]}-{second['entry'][:16]}.html"


def _colour_code(text: str) -> Markup:
    # The formatter escapes the text.
    return Markup(highlight(text, PythonLexer(), HtmlFormatter(nowrap=True, classprefix="c-")))  # noqa: S704
