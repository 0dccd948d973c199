"""`npugx-cache report`."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npugx_cache.cli import output
from npugx_cache.cli.opening import Failure, WrongInput, load_settings, open_existing, open_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npugx_cache.cli.listing import Choice
    from npugx_cache.cli.report.contents import Contents
    from npugx_cache.cli.report.pages import Pages
    from npugx_cache.store import FolderStore

_NEEDED = ("jinja2", "pygments")
_LONG = 20  # a report of fewer pages is there before a progress bar could be read


def print_report(directory: str | None, out: str, form: str, choice: Choice) -> None:
    """Write the pages, and print where they are."""
    _check_libraries()
    from npugx_cache.cli.report import contents, folder, pages

    store = open_existing(directory, "readonly")
    if store is None:
        root = output.in_line(str(load_settings(directory).cache_dir))
        raise WrongInput(f"there is no cache in {root} yet. Name another one with --dir")
    place = Path(out)
    folder.check_replaceable(place)  # before the work is done
    whole = place.resolve()  # a report in the current folder takes this folder away
    found = contents.read(store, open_journal(directory), choice)
    with folder.replacing(place) as new:
        written = pages.Pages(new, found)
        faults = _write(written, store, found)
    if form == "json":
        output.print_json(
            {
                "index": str(whole / "index.html"),
                "pages": written.count,
                "entries": len(found.listed.rows),
                "differences": len(found.pairs),
                "unreadable": len(found.listed.refused),
                "damaged": faults,
            }
        )
        return
    for entry, fault in faults.items():
        click.echo(f"{entry[:12]}  damaged: {output.in_line(fault)}")
    entries = output.count(len(found.listed.rows), "entry", "entries")
    click.echo(f"{output.count(written.count, 'page', 'pages')} about {entries}: ", nl=False)
    click.echo(output.in_line(str(place / "index.html")))


def _write(written: Pages, store: FolderStore, found: Contents) -> dict[str, str]:
    """Write all pages; return what is wrong with entries, by their ids."""
    from npugx_cache.cli.report.entries import entry_page

    faults = {}
    written.assets()
    with _progress(len(found.listed.rows) + len(found.pairs)) as advance:
        for row in found.listed.rows:
            shown = entry_page(store, row, found.lines)
            if shown.fault:
                faults[str(row["entry"])] = shown.fault
            written.entry(shown)
            advance()
        written.differences(store, advance)
    written.misses()
    written.index(faults)
    return faults


def _check_libraries() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Failure(
            f"the pages are made with {' and '.join(missing)}, not installed here. "
            "Do: pip install 'npugx_cache[report]'"
        )


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal, if there is enough to do."""
    if total < _LONG or not sys.stderr.isatty():
        yield lambda: None
        return
    with click.progressbar(length=total, label="writing pages", file=sys.stderr) as bar:
        yield lambda: bar.update(1)
