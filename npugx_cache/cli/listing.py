"""`npugx-cache ls`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npugx_cache.cli import output
from npugx_cache.cli.opening import load_settings, open_existing
from npugx_cache.store import Listed, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHOWN_DIGITS = 12
_TITLES = (
    "ENTRY",
    "KIND",
    "FUNCTION",
    "CREATED",
    "USED",
    "SIZE",
    "HITS",
    "SAVED",
    "INPUTS / REASON",
    "ENVIRONMENT",
)
_RIGHT = frozenset({"SIZE", "HITS", "SAVED"})
_ORDERS = {
    "used": lambda item: item.last_used,
    "size": lambda item: item.stored_bytes,
    "created": lambda item: item.manifest.created,
    "hits": lambda item: item.hits,
}


def print_listing(directory: str | None, form: str, sort: str) -> None:
    store = open_existing(directory, "readonly")
    found = list(store.listing()) if store is not None else []
    listed = [item for item in found if isinstance(item, Listed)]
    listed.sort(key=_ORDERS[sort], reverse=True)
    refused = [item for item in found if isinstance(item, Refused)]
    if form == "json":
        output.print_json(
            {
                "entries": [_as_json(item) for item in listed],
                "unreadable": [
                    {"entry": item.entry, "key": item.key, "reason": item.reason}
                    for item in refused
                ],
                "total": _total(listed, refused),
            }
        )
        return
    if listed:
        click.echo(output.table(_TITLES, [_row(item) for item in listed], right=_RIGHT))
    for bad in refused:
        name = bad.entry[:_SHOWN_DIGITS] or f"key {bad.key[:_SHOWN_DIGITS]}"
        click.echo(f"{name}  unreadable: {output.in_line(bad.reason)}")
    root = load_settings(directory).cache_dir if store is None else store.root
    where = f"{root}, which does not exist yet" if store is None else str(root)
    click.echo(f"{_sentence(_total(listed, refused))} in {output.in_line(where)}")


def _row(item: Listed) -> tuple[str, ...]:
    manifest = item.manifest
    bypassed = manifest.kind == "bypass"
    return (
        manifest.entry[:_SHOWN_DIGITS],
        manifest.kind,
        _about(item, "function") or "?",
        output.moment(manifest.created),
        output.moment(item.last_used),
        output.size(item.stored_bytes),
        str(item.hits),
        "-" if bypassed else output.seconds(_saved(item)),
        _about(item, "reason" if bypassed else "signature"),
        _about(item, "environment"),
    )


def _about(item: Listed, name: str) -> str:
    value = item.manifest.about.get(name)
    return output.in_line(value) if isinstance(value, str) else ""


def _saved(item: Listed) -> float:
    return 0.0 if item.manifest.kind == "bypass" else item.hits * item.manifest.cost_seconds


def _as_json(item: Listed) -> dict[str, object]:
    manifest = item.manifest
    texts = {
        name: manifest.about.get(name)
        for name in ("function", "signature", "reason", "environment")
        if isinstance(manifest.about.get(name), str)
    }
    return {
        "entry": manifest.entry,
        "key": manifest.key,
        "identity": manifest.identity,
        "kind": manifest.kind,
        **texts,
        "created": manifest.created,
        "last_used": item.last_used,
        "size": item.stored_bytes,
        "hits": item.hits,
        "cost_seconds": manifest.cost_seconds,
        "saved_seconds": _saved(item),
    }


def _total(listed: Iterable[Listed], refused: Iterable[Refused]) -> dict[str, float]:
    items = list(listed)
    blobs = {ref.sha256: ref.stored_size for item in items for ref in item.manifest.blobs}
    alone = sum(
        item.stored_bytes - sum(ref.stored_size for ref in item.manifest.blobs) for item in items
    )
    return {
        "entries": len(items),
        "bypasses": sum(item.manifest.kind == "bypass" for item in items),
        "unreadable": len(list(refused)),
        "size": alone + sum(blobs.values()),
        "hits": sum(item.hits for item in items),
        "saved_seconds": sum(map(_saved, items)),
    }


def _sentence(total: dict[str, float]) -> str:
    entries = output.count(total["entries"], "entry", "entries")
    bypasses = output.count(total["bypasses"], "bypass", "bypasses")
    return (
        f"{entries} ({bypasses}), {total['unreadable']:.0f} unreadable, "
        f"{output.size(total['size'])}, {output.count(total['hits'], 'hit', 'hits')}, "
        f"{output.seconds(total['saved_seconds'])} of compiling saved"
    )
