"""`npugx-cache stats`."""

from __future__ import annotations

import click

from npugx_cache.cli import output
from npugx_cache.cli.opening import load_settings, open_existing
from npugx_cache.store.format.layout import is_quarantined, is_temporary, listdir
from npugx_cache.store.upkeep.index import Overview


def print_stats(directory: str | None, form: str) -> None:
    store = open_existing(directory, "readonly")
    overview, uses = (Overview(), {}) if store is None else store.overview()
    kinds = overview.columns.texts("kind")
    costs = overview.columns.numbers("cost_seconds")
    entries = overview.columns.texts("entry")
    used = [(uses[e], cost) for e, cost in zip(entries, costs, strict=True) if e in uses]
    root = load_settings(directory).cache_dir if store is None else store.root
    numbers: dict[str, float] = {
        "entries": len(kinds),
        "bypasses": kinds.count("bypass"),
        "unreadable": len(overview.refused),
        "blobs": overview.blobs,
        "size": overview.size,
        "disk_size": overview.disk_bytes,
        "hits": sum(use.hits for use, _ in used),
        "never_hit": len(kinds) - sum(use.hits > 0 for use, _ in used),
        "compile_seconds": sum(costs),
        "saved_seconds": sum(use.hits * cost for use, cost in used),
    }
    if store is not None:
        names = listdir(store.folder, store.folder.part("quarantine"))
        bad = [name for name in names if is_quarantined(name) and not name.endswith(".reason")]
        numbers["quarantined"] = len(bad)
        unfinished = listdir(store.folder, store.folder.part("tmp"))
        numbers["temporaries"] = len(list(filter(is_temporary, unfinished)))
    if form == "json":
        output.print_json({"root": str(root), **numbers})
        return
    click.echo(output.in_line(str(root)))
    for name, number in numbers.items():
        click.echo(f"  {name.replace('_', ' '):<16} {_text(name, number)}")


def _text(name: str, number: float) -> str:
    if name.endswith("size"):
        return output.size(number)
    return output.seconds(number) if name.endswith("seconds") else f"{number:.0f}"
