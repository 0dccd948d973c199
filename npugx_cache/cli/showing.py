"""`npugx-cache show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from npugx_cache.cli import output
from npugx_cache.cli.naming import entry_meant
from npugx_cache.cli.opening import WrongInput, open_existing
from npugx_cache.entry import capture_plan_format
from npugx_cache.entry.break_record import BreakRecord
from npugx_cache.store import Miss

if TYPE_CHECKING:
    from npugx_cache.store import FolderStore, Manifest

_NOTES = frozenset({"bypass", "set-up"})
_OF_GRAPHS = frozenset({"compile_seconds", "blobs"})


def print_entry(entry: str, directory: str | None, form: str) -> None:
    store = open_existing(directory, "readonly")
    if store is None:
        raise WrongInput(f"{entry}: there is no cache yet. Name another one with --dir")
    manifest = store.find(entry_meant(entry, store.overview()[0]))
    if isinstance(manifest, Miss):
        raise WrongInput(f"{manifest.reason}. `npugx-cache ls` shows what there is")
    shown = _describe_entry(store, manifest)
    if form == "json":
        output.print_json(shown)
        return
    plan = shown.pop("capture_plan")
    if manifest.kind in _NOTES:
        # It holds no graph: nothing was compiled, captured or saved.
        shown = {name: value for name, value in shown.items() if name not in _OF_GRAPHS}
    for name, value in shown.items():
        shown_name = output.in_line(name.replace("_", " "))
        click.echo(f"{shown_name:<16} {output.in_line(_text(name, value))}")
    if manifest.kind not in _NOTES:
        click.echo("capture plan     " + (f"{len(plan)} graphs" if plan else "none"))
    for graph in plan:
        click.echo(f"  {output.in_line(_line(graph))}")


def _describe_entry(store: FolderStore, manifest: Manifest) -> dict[str, Any]:
    _, uses = store.overview()
    used = uses.get(manifest.entry)
    record = BreakRecord()
    if manifest.kind == "bypass":
        record = BreakRecord.of(store.read_record(manifest.entry))
    # The writer of an entry chose the names in `about`: none may replace a field that is known.
    hidden = {"signature_id", "entry", "kind", "breaks"}
    about = {name: str(value) for name, value in manifest.about.items() if name not in hidden}
    return {
        "entry": manifest.entry,
        "kind": manifest.kind,
        **about,
        "created": manifest.created,
        "compile_seconds": manifest.cost_seconds,
        "hits": used.hits if used is not None else 0,
        "blobs": {ref.name: ref.stored_size for ref in manifest.blobs},
        "capture_plan": captured_graphs(store, manifest.entry),
        **({"pieces": [*record.pieces], "graph_breaks": [*record.breaks]} if record.breaks else {}),
    }


def captured_graphs(store: FolderStore, entry: str) -> list[dict[str, Any]]:
    """The rows of the capture plan of an entry, the most used graph first."""
    try:
        graphs = capture_plan_format.graphs_of(store.read_record(entry))
    except ValueError:
        return []
    rows = [
        {
            "order": order,
            "shape": graph.shape,
            "uses": graph.uses,
            "bytes": graph.nbytes,
            "seconds": graph.seconds,
            "needs_a_call": graph.obstacle or None,
        }
        for order, graph in enumerate(graphs)
    ]
    return sorted(rows, key=lambda row: -int(row["uses"] or 0))


def _text(name: str, value: Any) -> str:
    if name == "created":
        return output.moment(value)
    if isinstance(value, list):
        return "; ".join(value)
    if name == "blobs":
        return ", ".join(f"{blob} {output.size(size)}" for blob, size in value.items())
    return output.seconds(value) if name == "compile_seconds" else str(value)


def _line(graph: dict[str, Any]) -> str:
    needs = f"; needs a call: {graph['needs_a_call']}" if graph["needs_a_call"] else ""
    used = output.count(graph["uses"], "replay", "replays")
    cost = f"{output.size(graph['bytes'])}, captured in {output.seconds(graph['seconds'])}"
    return f"#{graph['order']}: {graph['shape']}: {used}, {cost}{needs}"
