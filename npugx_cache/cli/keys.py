"""`npugx-cache key`."""

from __future__ import annotations

import os

import click

from npugx_cache.cli import output
from npugx_cache.cli.opening import WrongInput


def make_key(file: str) -> None:
    """Write a new signing key that only its owner can read; never over an existing file."""
    from npugx_cache.store.format.signing import new_secret

    try:
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as opened:
            opened.write(new_secret())
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        raise WrongInput(f"{file}: {error.strerror}. Name a new file outside the cache") from None
    click.echo(f"written to {output.in_line(file)}. Give it to every worker of this cache with:")
    click.echo(f"  NPUGX_CACHE_KEY_FILE={output.in_line(os.path.abspath(file))}")  # noqa: PTH100
