"""What commands say of the remote tier: they show and change the folder of this host alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npugx_cache.cli import output
from npugx_cache.config import remote_address

if TYPE_CHECKING:
    from npugx_cache.config import Settings

NOT_COUNTED = (
    "has entries of its own, which are not counted here; npugx-cache doctor tries the tier"
)
NOT_LISTED = "may have more; npugx-cache doctor tries the tier"
NOT_PRUNED = (
    "stays as it is: its engine has to expire what is old, and a worker may fetch again what was "
    "removed here"
)


def shown_address(settings: Settings) -> str | None:
    """What may be shown of the address of the tier: not its options, nor the name of a user."""
    return None if settings.remote is None else remote_address.parse(settings.remote).text


def say(settings: Settings, what: str) -> None:
    """A line about the remote tier of a worker with these settings, if there is one."""
    if settings.remote is None:
        return
    unused = "" if settings.trust == "signed" else ", not used without NPUGX_CACHE_KEY_FILE,"
    click.echo(output.in_line(f"the remote tier {shown_address(settings)}{unused} {what}"))
