"""Removes folders of older formats: all on request, or those that nobody has used for long.

That is 30 days, or the `older_than` of the policy. Releases with different formats share one root.
A format that is newer than ours is never touched.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from npugx_cache.store.format import layout
from npugx_cache.store.format.layout import listdir, subfolders
from npugx_cache.store.io import syscalls
from npugx_cache.store.io.trust import distrust
from npugx_cache.store.upkeep.sweep import DAY, remove

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugx_cache.store.format.layout import Folder
    from npugx_cache.store.results import PrunePolicy

_UNUSED = 30 * DAY
# Manifests first, so that a reader of that format finds a whole entry or none.
_PARTS = ("ac", "cas", "fn", "tmp", "quarantine", "locks")


def age_out(
    folder: Folder, policy: PrunePolicy, *, deadline: float, dry_run: bool
) -> tuple[tuple[str, ...], int]:
    """Remove the older formats that are no longer used; return their names and the bytes freed."""
    gone: list[str] = []
    freed = 0
    for name in older_formats(folder):
        if not policy.everything and _in_use(folder, name, policy, deadline):
            continue
        freed += _clear(folder, name, deadline, dry_run=dry_run)
        if time.monotonic() > deadline:
            break
        gone.append(name)
    return tuple(gone), freed


def older_formats(folder: Folder) -> list[str]:
    """Return the names of the older formats that lie in the root and are trusted."""
    found: list[str] = []
    for name in subfolders(folder, ""):
        digits = name.removeprefix("v")
        if digits == name or not digits.isascii() or not digits.isdecimal():
            continue
        if not 0 < int(digits) < int(layout.VERSION.removeprefix("v")):
            continue
        with contextlib.suppress(OSError):
            status = folder.tree.lstat(name)
            if distrust(status, folder.trust, folder.group) is None:
                found.append(name)
    return found


def _in_use(folder: Folder, name: str, policy: PrunePolicy, deadline: float) -> bool:
    """Tell whether a format was used lately: a hit sets its manifest's mtime, at most hourly."""
    limit = _UNUSED if policy.older_than is None else policy.older_than
    since = time.time() - limit
    for path in _tree(folder, name, "ac"):
        if time.monotonic() > deadline:
            return True
        with contextlib.suppress(OSError):
            if folder.tree.lstat(path).st_mtime > since:
                return True
    return False


def _clear(folder: Folder, root: str, deadline: float, *, dry_run: bool) -> int:
    freed = 0
    for part in _PARTS:
        for path in _tree(folder, root, part):
            if time.monotonic() > deadline:
                return freed
            with contextlib.suppress(OSError):
                status = folder.tree.lstat(path)
                if syscalls.is_folder(status):
                    if not dry_run:
                        folder.tree.rmdir(path)
                elif dry_run or remove(folder, path):
                    freed += status.st_size
    if not dry_run:
        remove(folder, f"{root}/size")
        with contextlib.suppress(OSError):
            folder.tree.rmdir(root)
    return freed


def _tree(folder: Folder, parent: str, name: str) -> Iterator[str]:
    """Yield what lies in a folder of `parent` and then the folder itself, following no link."""
    if name in subfolders(folder, parent):
        yield from _below(folder, f"{parent}/{name}")


def _below(folder: Folder, path: str) -> Iterator[str]:
    folders = set(subfolders(folder, path))
    for name in listdir(folder, path):
        if name in folders:
            yield from _below(folder, f"{path}/{name}")
        else:
            yield f"{path}/{name}"
    yield path
