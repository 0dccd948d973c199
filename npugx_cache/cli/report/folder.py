"""The folder of a report: written beside its place, and put there as a whole.

A file in the folder lists all others. A folder without this file, or with a file that is not in the
list, is no report or not a report alone, and is never replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from npugx_cache.cli import output
from npugx_cache.cli.opening import Failure, WrongInput

if TYPE_CHECKING:
    from collections.abc import Iterator

MARKER = "npugx-cache-report.json"


def check_replaceable(folder: Path) -> None:
    """Raise WrongInput if something lies in this place that is not a report alone."""
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise WrongInput(f"--out {_as_line(folder)} is no folder. Name a new one")
    listed = _earlier_files(folder)
    found = _files(folder) if listed else (path.name for path in folder.iterdir())
    foreign = next((name for name in found if name not in listed), None)
    if foreign is not None:
        raise WrongInput(
            f"--out {_as_line(folder)} is not a report alone: it holds {output.in_line(foreign)}. "
            "Name a new folder"
        )


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder to write a report into; at the end it takes the place of `folder`.

    If anything fails, what lay in this place still lies there.
    """
    check_replaceable(folder)
    folder = folder.resolve()  # the folder may be the current one, or lead through itself
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise Failure(f"--out {_as_line(folder)}: {error.strerror}") from None
    try:
        new, old = aside / "new", aside / "old"
        new.mkdir()
        yield new
        marker = {"what": "a report of npugx-cache", "files": sorted(_files(new))}
        (new / MARKER).write_text(json.dumps(marker), encoding="utf-8")
        check_replaceable(folder)
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
    except OSError as error:
        raise Failure(f"--out {_as_line(folder)}: {error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            yield str(path.relative_to(folder))


def _earlier_files(folder: Path) -> set[str]:
    """The files that an earlier report says it has; none if there is no report."""
    marker = folder / MARKER
    try:
        data = json.loads(marker.read_text(encoding="utf-8"))
        return {MARKER, *map(str, data["files"])}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _as_line(folder: Path) -> str:
    return output.in_line(str(folder))
