"""Opens the store that the options of a command name, or gives one clear error."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from npugx_cache import config
from npugx_cache.errors import OptionError
from npugx_cache.store import FolderStore, Journal, Unusable, open_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugx_cache.config import CacheMode, Settings


class Failure(click.ClickException):
    """The store can't do what was asked, or is bad; exit status 1."""

    exit_code = 1


class WrongInput(click.ClickException):
    """The user has to change something; exit status 2."""

    exit_code = 2


def size(text: str) -> int:
    """The bytes that an option's value means; raises click.BadParameter."""
    try:
        return config.parse_size(text)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r} is not a size such as 500M, 10G or 2TiB") from None


def duration(text: str) -> float:
    """The seconds that an option's value means; raises click.BadParameter."""
    try:
        return config.parse_duration(text)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error)) from None


def load_settings(directory: str | None) -> Settings:
    with _wrong_values():
        settings = config.load(cache_dir=directory)
    if settings.cache_dir == config.NO_FOLDER:
        raise WrongInput(config.NO_HOME)
    return settings


def static_kernel_wait() -> float:
    with _wrong_values():
        return config.static_kernel_wait()


def wiring(variable: str) -> config.Wiring:
    with _wrong_values():
        return config.wiring(variable)


def engine_passes() -> config.EnginePasses:
    with _wrong_values():
        return config.engine_passes()


def log_level() -> str | None:
    with _wrong_values():
        return config.log_level()


@contextlib.contextmanager
def _wrong_values() -> Iterator[None]:
    """Give the one clear error for a variable whose value is not usable."""
    try:
        yield
    except OptionError as error:
        raise WrongInput(f"{error}. Correct or unset it") from None


def open_journal(directory: str | None) -> Journal:
    """The journal of the folder, which need not exist any more."""
    return Journal(str(load_settings(directory).cache_dir), config.state_folder())


def open_existing(directory: str | None, mode: CacheMode) -> FolderStore | None:
    """Open the store in this mode; None if the default folder holds no cache yet.

    Raises WrongInput if `directory`, which the user named, holds no cache: that is a typing mistake
    more often than not. Raises Failure if the store can't be used.
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
