"""`npugx-cache export` and `import`."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from npugx_cache.cli import output
from npugx_cache.cli.filters import selected
from npugx_cache.cli.opening import Failure, WrongInput, load_settings, open_existing
from npugx_cache.store import FolderStore, Unusable, open_folder
from npugx_cache.store.tools import bundle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npugx_cache.cli.filters import Test


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
    chosen = [(keys[at], entries[at]) for at in selected(store, overview, uses, filters)]
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
        source = Path(file).open("rb")  # noqa: SIM115  # only its own errors are wrong input
    except OSError as error:
        raise WrongInput(f"{file}: {error.strerror}") from None
    with source:
        report = _unpack(store, source, file, sign=sign)
    return _print(report, f"imported into {store.root}", form)


def _unpack(store: FolderStore, source: IO[bytes], file: str, *, sign: bool) -> bundle.BundleReport:
    try:
        return bundle.unpack(store.folder, source, sign=sign)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise WrongInput(f"{file} is not a whole bundle: {error}") from None
    except OSError as error:
        raise Failure(f"incomplete: {store.folder.explain(error)}") from None


def _print(report: bundle.BundleReport, done: str, form: str) -> str | None:
    if form == "json":
        output.print_json(
            {
                "entries": [manifest.entry for manifest in report.entries],
                "blobs": report.blobs,
                "bytes": report.size,
                "refused": [{"name": n, "reason": reason} for n, reason in report.refused],
            }
        )
    else:
        for name, reason in report.refused:
            click.echo(f"refused {output.in_line(name)}: {output.in_line(reason)}", err=True)
        click.echo(
            f"{output.count(len(report.entries), 'entry', 'entries')}, "
            f"{output.count(report.blobs, 'blob', 'blobs')}, {output.size(report.size)} "
            f"{output.in_line(done)}"
        )
    if not report.refused:
        return None
    return f"{output.count(len(report.refused), 'member', 'members')} refused"
