"""Completes entry ids in a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npugx_cache.cli import output
from npugx_cache.cli.opening import open_existing

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_SHOWN = 12


def entry_ids(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """The ids that begin so, each with its function; none if the cache can't be read."""
    from click.shell_completion import CompletionItem

    try:
        store = open_existing(context.params.get("directory"), "readonly")
    except click.ClickException:
        return []
    if store is None:
        return []
    columns = store.overview()[0].columns
    wanted = begun.lower()
    shown = max(_SHOWN, len(begun))
    return [
        CompletionItem(entry[:shown], help=output.in_line(function))
        for entry, function in zip(columns.texts("entry"), columns.texts("function"), strict=True)
        if entry.startswith(wanted)
    ]
