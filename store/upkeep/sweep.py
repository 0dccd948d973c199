"""Removes leftovers: files and folders that belong to no entry.

Leftovers are temporary files of killed writers, old files in quarantine, stale markers, empty
folders, records of entries that are gone, and unused locks.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from npugx_cache.store.content.lock import Locked, hold
from npugx_cache.store.format.layout import (
    is_key,
    is_lock,
    is_quarantined,
    is_temporary,
    key_folders,
    listdir,
    shards,
)
from npugx_cache.store.upkeep.records import PART

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from npugx_cache.store.format.layout import Folder

HOUR = 3600.0
DAY = 24 * HOUR
_LIVE_WRITER = 60.0


def remove(folder: Folder, path: str) -> bool:
    """Delete one file; tell whether it is gone."""
    try:
        folder.tree.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def sweep(
    folder: Folder, *, everything: bool, dry_run: bool, kept: Collection[str] = ()
) -> tuple[int, int]:
    """Remove leftovers; return their number and their size in bytes.

    `kept` are keys that have entries. A dry run counts only temporary files and quarantine, because
    to count markers takes as long as to plan all the rest. The size is always that of these two.
    """
    # The temporary file of a live writer stays even if everything goes: its rename would fail.
    count, size = _sweep_files(
        folder, "tmp", is_temporary, _LIVE_WRITER if everything else HOUR, dry_run=dry_run
    )
    more, more_size = _sweep_files(
        folder, "quarantine", is_quarantined, 0 if everything else 7 * DAY, dry_run=dry_run
    )
    count += more
    if not dry_run:
        count += _sweep_markers(folder)
        _sweep_folders(folder, kept)
        count += _sweep_records(folder)
        count += _sweep_locks(folder, 0 if everything else DAY)
    return count, size + more_size


def _sweep_files(
    folder: Folder, part: str, is_ours: Callable[[str], bool], age: float, *, dry_run: bool
) -> tuple[int, int]:
    oldest = time.time() - age
    count = size = 0
    for name in filter(is_ours, listdir(folder, folder.part(part))):
        path = f"{folder.part(part)}/{name}"
        with contextlib.suppress(OSError):
            status = folder.tree.lstat(path)
            if status.st_mtime <= oldest and (dry_run or remove(folder, path)):
                count, size = count + 1, size + status.st_size
    return count, size


def _sweep_markers(folder: Folder) -> int:
    root = folder.part("fn")
    markers = {
        name: listdir(folder, f"{root}/{name}") for name in filter(is_key, listdir(folder, root))
    }
    # A marker is written after its manifest, so a marker whose key has no folder is stale.
    keys = set(key_folders(folder))
    count = 0
    for identity, marked in markers.items():
        for key in marked:
            if key not in keys and is_key(key):
                count += remove(folder, folder.marker(identity, key))
        _remove_empty(folder, f"{root}/{identity}")
    return count


def _sweep_folders(folder: Folder, kept: Collection[str]) -> None:
    """Remove empty key and shard folders; rmdir fails for a folder that is not empty."""
    for key in key_folders(folder):
        if key not in kept:
            _remove_empty(folder, folder.key(key))
    for shard in (*shards(folder, "ac"), *shards(folder, "cas")):
        _remove_empty(folder, folder.part(shard))


def _remove_empty(folder: Folder, path: str) -> None:
    with contextlib.suppress(OSError):
        folder.tree.rmdir(path)


def _sweep_records(folder: Folder) -> int:
    parts = [folder.part(shard) for shard in shards(folder, PART)]
    found = [(part, name) for part in parts for name in listdir(folder, part)]
    if not found:
        return 0
    entries = {name for key in key_folders(folder) for name in listdir(folder, folder.key(key))}
    # Young records stay, because an entry that is just being published is not listed yet.
    oldest = time.time() - DAY
    gone = [f"{part}/{name}" for part, name in found if name not in entries]
    return sum(_is_old(folder, path, oldest) and remove(folder, path) for path in gone)


def _is_old(folder: Folder, path: str, oldest: float) -> bool:
    try:
        return folder.tree.lstat(path).st_mtime <= oldest
    except OSError:
        return False


def _sweep_locks(folder: Folder, age: float) -> int:
    oldest = time.time() - age
    count = 0
    for name in filter(is_lock, listdir(folder, folder.part("locks"))):
        path = f"{folder.part('locks')}/{name}"
        if not _is_old(folder, path, oldest):
            continue
        # Removed only while we hold the lock. Otherwise another worker could create a new file and
        # hold the same lock as the present holder.
        with hold(folder, name.removesuffix(".lock"), wait=0) as answer:
            if isinstance(answer, Locked) and remove(folder, path):
                count += 1
    return count
