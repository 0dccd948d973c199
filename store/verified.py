"""What this process has verified already, by the stamps of the files: the second hit is cheaper.

A stamp stands for the contents of a file on a local file system, once the file is older than the
grain of its times: whoever changes it later changes its ctime, which nobody can set. Not so where
strangers may write (trust `signed`): a write through mmap comes without a new time. There blobs
are verified each time; manifests are kept decoded, so that their bytes count no more.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeAlias

from npugx_cache.store import syscalls
from npugx_cache.store.filesystem import is_local

if TYPE_CHECKING:
    import os

    from npugx_cache.store.entries import Entry
    from npugx_cache.store.layout import Folder

Stamp: TypeAlias = tuple[int, int, int, int, int]

_RACY_NS = 2_000_000_000
_MAX_BLOBS = 4096
_MAX_KEYS = 256


def stamp(status: os.stat_result) -> Stamp:
    return (
        status.st_dev,
        status.st_ino,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_size,
    )


class Verified:
    """The verified files of one store, in memory. Whatever it does not know is verified anew."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._local: bool | None = None
        self._blobs: dict[str, Stamp] = {}
        self._keys: dict[str, tuple[Stamp, list[Entry]]] = {}

    def note_blob(self, digest: str, seen: Stamp) -> None:
        if self._folder.trust == "signed" or _is_young(seen):
            return
        if len(self._blobs) >= _MAX_BLOBS:
            self._blobs.clear()
        self._blobs[digest] = seen

    def blob(self, digest: str) -> Stamp | None:
        """Return the stamp that a blob had when it was verified."""
        known = self._blobs.get(digest)
        return known if known is not None and self._is_local() else None

    def note_key(self, key: str, seen: Stamp, entries: list[Entry]) -> None:
        """Keep all entries of a key. `seen` is the stamp of its folder before it was listed."""
        if _is_young(seen) or any(_is_young(stamp(entry.status)) for entry in entries):
            return
        if len(self._keys) >= _MAX_KEYS:
            self._keys.clear()
        self._keys[key] = seen, entries

    def key(self, key: str) -> list[Entry] | None:
        """Return the entries of a key where nothing of it has changed since; raises OSError."""
        known = self._keys.get(key)
        if known is None or not self._is_local():
            return None
        seen, entries = known
        if stamp(syscalls.lstat(self._folder.key(key))) == seen and all(
            stamp(syscalls.lstat(self._folder.manifest(key, manifest.entry))) == stamp(status)
            for manifest, status in entries
        ):
            return entries
        del self._keys[key]
        return None

    def _is_local(self) -> bool:
        # Asked when it first matters: a worker that reads everything once never pays for it.
        if self._local is None:
            self._local = is_local(self._folder.root)
        return self._local


def _is_young(seen: Stamp) -> bool:
    _, _, mtime, ctime, _ = seen
    return time.time_ns() - max(mtime, ctime) < _RACY_NS
