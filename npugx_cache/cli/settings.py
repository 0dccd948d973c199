"""`npugx-cache dir` and `npugx-cache config`: which settings are in force, and who set them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from npugx_cache import config
from npugx_cache.cli import output, remote, versions
from npugx_cache.cli.opening import (
    engine_passes,
    load_settings,
    log_level,
    static_kernel_wait,
    wiring,
)
from npugx_cache.cli.table import Column, lay_out, terminal_width
from npugx_cache.config import misspellings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npugx_cache.config import Settings

DEFAULT = "default"
_ENVIRONMENT = "environment"
_LOCK_WAIT = "twice what the last compile took, 30 s to 10 min"
_FIELDS = {
    "NPUGX_CACHE_DIR": ("cache_dir", ""),
    "NPUGX_CACHE_LOCAL_DIR": ("local_dir", "none"),
    "NPUGX_CACHE_BAKED_DIR": ("baked_dirs", "none"),
    "NPUGX_CACHE_REMOTE": ("remote", "none"),
    "NPUGX_CACHE": ("mode", ""),
    "NPUGX_CACHE_ON_MISS": ("on_miss", ""),
    "NPUGX_CACHE_TRUST": ("trust", ""),
    "NPUGX_CACHE_KEY_FILE": ("key_file", "none"),
    "NPUGX_CACHE_MAX_SIZE": ("max_size", "unlimited"),
    "NPUGX_CACHE_MAX_ENTRIES": ("max_entries", "unlimited"),
    "NPUGX_CACHE_MAX_AGE": ("max_age", "unlimited"),
    "NPUGX_CACHE_POLICY": ("policy", ""),
    "NPUGX_CACHE_LOCK_WAIT": ("lock_wait", _LOCK_WAIT),
    "NPUGX_CACHE_RECOMPILE_LIMIT": ("recompile_limit", ""),
    "NPUGX_CACHE_VERIFY": ("verify", ""),
    "NPUGX_CACHE_UNTESTED_TORCH": ("untested_torch", "0"),
    "NPUGX_CACHE_STRICT": ("strict", "0"),
}
"""Each variable with the field of `Settings` that it sets, and the words for a value that says
nothing to people."""
_LOG, _STATIC_KERNEL_WAIT = "NPUGX_CACHE_LOG", "NPUGX_STATIC_KERNEL_WAIT"


class Setting(NamedTuple):
    """One setting: its value for people (`text`) and for programs, and who set it (`origin`)."""

    variable: str
    text: str
    value: object
    origin: str


def settings_in_force(directory: str | None) -> list[Setting]:
    """Every setting of a worker with this environment; raises WrongInput for a wrong value."""
    settings = load_settings(directory)
    given = config.own_environment()
    rows = [
        Setting(name, *_value(settings, field, words, given.get(name)), _origin(name, given))
        for name, (field, words) in _FIELDS.items()
    ]
    level = log_level()
    rows.append(Setting(_LOG, level or "as logging is set up", level, _origin(_LOG, given)))
    for name in (config.VLLM, config.SGLANG):
        wired = wiring(name)
        rows.append(Setting(name, wired, wired, _origin(name, given)))
    passes = engine_passes()
    rows.append(Setting(config.ENGINE_PASSES, passes, passes, _origin(config.ENGINE_PASSES, given)))
    wait = static_kernel_wait()
    text = given.get(_STATIC_KERNEL_WAIT) or f"{wait:g}"
    rows.append(Setting(_STATIC_KERNEL_WAIT, text, wait, _origin(_STATIC_KERNEL_WAIT, given)))
    named = {"NPUGX_CACHE_DIR": folder_origin(directory)}
    if settings.trust == "signed" and not given.get("NPUGX_CACHE_TRUST"):
        named["NPUGX_CACHE_TRUST"] = "NPUGX_CACHE_KEY_FILE is set"
    return [row._replace(origin=named.get(row.variable, row.origin)) for row in rows]


def folder_origin(directory: str | None) -> str:
    """Who chose the cache folder."""
    if directory is not None:
        return "--dir"
    return next(iter(config.named_folders()), DEFAULT)


def warn_of_unknown(unknown: Mapping[str, str]) -> None:
    for sentence in unknown.values():
        click.echo(f"unknown: {sentence}", err=True)


def print_folder(directory: str | None, form: str) -> None:
    """Print the cache folder. The reason goes to stderr, so that a shell can use stdout."""
    settings, origin = load_settings(directory), folder_origin(directory)
    there = (settings.cache_dir / "v1").is_dir()
    if form == "json":
        output.print_json({"dir": str(settings.cache_dir), "origin": origin, "exists": there})
        return
    path = settings.cache_dir
    # A shell needs the bytes of the name, whatever they are.
    click.echo(output.in_line(str(path)) if output.on_terminal() else os.fsencode(path))
    absent = "" if there else "; there is no cache in it yet"
    click.echo(f"set by {origin}{absent}", err=True)


def print_config(directory: str | None, form: str) -> None:
    rows, unknown = settings_in_force(directory), misspellings.sentences()
    unserved = versions.unserved_versions(untested_torch=load_settings(directory).untested_torch)
    if form == "json":
        named = {"settings": as_json(rows), "unserved": unserved, "unknown": sorted(unknown)}
        output.print_json(named)
        return
    columns = [
        Column("VARIABLE", [row.variable for row in rows]),
        Column("VALUE", output.in_lines([row.text for row in rows]), least=12, keeps_end=True),
        Column("SET BY", output.in_lines([row.origin for row in rows]), least=8),
    ]
    table = lay_out(columns, order=range(len(rows)), width=terminal_width())
    click.echo("\n".join(table.lines))
    warn_of_unknown(unknown)
    for reason in unserved.values():
        click.echo(f"not served: {reason}", err=True)


def as_json(rows: list[Setting]) -> list[dict[str, object]]:
    return [{"variable": row.variable, "value": row.value, "origin": row.origin} for row in rows]


def _origin(name: str, given: Mapping[str, str]) -> str:
    return _ENVIRONMENT if given.get(name) else DEFAULT


def _value(settings: Settings, field: str, words: str, given: str | None) -> tuple[str, object]:
    """A value as a text for people and in a form for JSON."""
    value = getattr(settings, field)
    if field == "remote" and value is not None:
        name = remote.shown_address(settings)
        return str(name), name
    if isinstance(value, Path):
        return str(value), str(value)
    if isinstance(value, tuple):
        return ":".join(map(str, value)) or words, [str(each) for each in value]
    return given or (words if value is None or words in {"0", "off"} else str(value)), value
