"""From the options of a command to an open store, with one clear error where there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from npugx_cache import config
from npugx_cache.errors import OptionError
from npugx_cache.store import FolderStore, Unusable, open_folder

if TYPE_CHECKING:
    from npugx_cache.config import CacheMode, Settings


class Failure(click.ClickException):
    """The store can't do it; exit status 1."""

    exit_code = 1


class WrongInput(click.ClickException):
    """The user has to change something; exit status 2."""

    exit_code = 2


def size(text: str) -> int:
    """Bytes of an option's value."""
    try:
        return config.parse_size(text)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r} is not a size such as 500M, 10G or 2TiB") from None


def duration(text: str) -> float:
    """Seconds of an option's value."""
    try:
        return config.parse_duration(text)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error)) from None


def load_settings(directory: str | None) -> Settings:
    try:
        return config.load(cache_dir=directory)
    except OptionError as error:
        raise WrongInput(f"{error}. Correct or unset it") from None


def open_existing(directory: str | None, mode: CacheMode) -> FolderStore | None:
    """Open the store of the settings in this mode, or None where there is none yet.

    A folder that the user named and that holds no cache is an error: it is a typing mistake
    more often than not.
    """
    settings = load_settings(directory)
    if not (settings.cache_dir / "v1").is_dir():
        if directory is None:
            return None
        what = "holds no cache (no folder v1 in it)" if settings.cache_dir.is_dir() else "not found"
        raise WrongInput(f"--dir {directory}: {what}. Name the folder that the workers use")
    if mode == "on" and settings.mode == "readonly":
        raise Failure("NPUGX_CACHE=readonly forbids changes to the cache; unset it to go on")
    store = open_folder(replace(settings, mode=mode))
    if isinstance(store, Unusable):
        raise Failure(store.reason)
    return store
