"""`npugx-cache export` and `import`."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from npugx_cache.cli import output
from npugx_cache.cli.filters import select_entries
from npugx_cache.cli.opening import Failure, WrongInput, load_settings, open_existing
from npugx_cache.store import FolderStore, Unusable, open_folder
from npugx_cache.store.tools import bundle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npugx_cache.cli.filters import Test

STANDARD = "-"
"""Stands for standard output, or standard input, where a file is named."""


def export_bundle(
    file: str,
    directory: str | None,
    form: str,
    filters: Sequence[Test],
) -> str | None:
    """Write a bundle; return why it lacks entries, or None."""
    store = open_existing(directory, "readonly")
    if store is None:
        raise WrongInput("there is no cache yet. Name another one with --dir")
    overview, uses = store.overview()
    keys, entries = (overview.columns.texts(name) for name in ("key", "entry"))
    chosen = [(keys[at], entries[at]) for at in select_entries(store, overview, uses, filters)]
    if file == STANDARD:
        return _export_to_stdout(store, chosen, form)
    # Renamed into place when it is complete, so that no half bundle has this name.
    unfinished = Path(f"{file}.{os.getpid()}.part")
    try:
        with unfinished.open("xb") as out:
            report = bundle.pack(store.folder, chosen, out)
            out.flush()
            os.fsync(out.fileno())
        unfinished.replace(file)
    except OSError as error:
        raise WrongInput(f"{file}: {error.strerror}. Name a file that can be written") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return _print(report, f"exported to {file}", form)


def _export_to_stdout(store: FolderStore, chosen: list[tuple[str, str]], form: str) -> str | None:
    """Write a bundle to stdout and nothing else; the report goes to stderr."""
    if output.on_terminal():
        raise WrongInput("a tar file can't be shown on a terminal. Name a file, or pipe it")
    out = sys.stdout.buffer
    try:
        report = bundle.pack(store.folder, chosen, out)
        out.flush()
    except BrokenPipeError:
        raise  # click ends the command: the reader has gone
    except OSError as error:
        raise Failure(f"standard output: {error.strerror}") from None
    return _print(report, "exported", form, err=True)


def import_bundle(file: str, directory: str | None, form: str, *, sign: bool) -> str | None:
    """Copy the entries of a bundle into the cache; return why some were refused, or None."""
    settings = load_settings(directory)
    if settings.mode == "readonly":
        raise Failure("NPUGX_CACHE=readonly forbids changes to the cache; unset it to go on")
    if sign and settings.trust != "signed":
        raise WrongInput("--sign needs NPUGX_CACHE_KEY_FILE")
    store = open_folder(settings)
    if isinstance(store, Unusable):
        raise Failure(store.reason)
    if store.readonly is not None:
        raise Failure(f"{store.root} is read-only: {store.readonly}")
    try:
        source = _open_bundle(file)
    except OSError as error:
        raise WrongInput(f"{file}: {error.strerror}") from None
    with source:
        report = _unpack(store, source, file, sign=sign)
    known = f" ({len(report.entries) - report.known} new, {report.known} there already)"
    return _print(report, f"imported into {store.root}", form, known=known)


def _open_bundle(file: str) -> IO[bytes]:
    """A bundle to read from; raises OSError. Standard input is copied, because it can't seek."""
    if file != STANDARD:
        return Path(file).open("rb")
    copy = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    shutil.copyfileobj(sys.stdin.buffer, copy)
    copy.seek(0)
    return copy


def _unpack(store: FolderStore, source: IO[bytes], file: str, *, sign: bool) -> bundle.BundleReport:
    try:
        return bundle.unpack(store.folder, source, sign=sign)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise WrongInput(f"{file} is not a whole bundle: {error}") from None
    except OSError as error:
        raise Failure(f"incomplete: {store.folder.explain(error)}") from None


def _print(
    report: bundle.BundleReport, done: str, form: str, *, known: str = "", err: bool = False
) -> str | None:
    if form == "json":
        output.print_json(
            {
                "entries": [manifest.entry for manifest in report.entries],
                **({"new": len(report.entries) - report.known} if known else {}),
                "blobs": report.blobs,
                "bytes": report.size,
                "refused": [{"name": n, "reason": reason} for n, reason in report.refused],
            },
            err=err,
        )
    else:
        for name, reason in report.refused:
            click.echo(f"refused {output.in_line(name)}: {output.in_line(reason)}", err=True)
        click.echo(
            f"{output.count(len(report.entries), 'entry', 'entries')}{known}, "
            f"{output.count(report.blobs, 'blob', 'blobs')}, {output.size(report.size)} "
            f"{output.in_line(done)}",
            err=err,
        )
    if not report.refused:
        return None
    return f"{output.count(len(report.refused), 'member', 'members')} refused"
