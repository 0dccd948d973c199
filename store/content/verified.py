"""Remembers which files this process has verified or refused, by the stamps of the files.

That makes the second hit cheaper, and also the second lookup beside files that somebody planted.

On a local file system the stamp of a file (device, inode, times, size) stands for its contents, if
the file is older than the resolution of its times: a later change also changes the ctime, which
nobody can set. Strangers who may write (trust `signed`) can change a file through mmap, which may
leave the times as they are. So under trust `signed`, blobs are verified at each read; manifests are
kept decoded, so that later changes of their bytes have no effect.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeAlias

from npugx_cache.records import NamedTuple
from npugx_cache.store.format.layout import VERSION
from npugx_cache.store.io import syscalls

if TYPE_CHECKING:
    import os

    from npugx_cache.store.content.entries import Entry
    from npugx_cache.store.format.layout import Folder

Stamp: TypeAlias = tuple[int, int, int, int, int]

_RACY_NS = 2_000_000_000  # a file younger than this may change without a new stamp
_MAX_BLOBS = 4096
_MAX_KEYS = 256
_MAX_REFUSALS = 8192


class Refusal(NamedTuple):
    """Why a file was refused, and the stamp that it had then."""

    seen: Stamp
    reason: str


def stamp(status: os.stat_result) -> Stamp:
    return (
        status.st_dev,
        status.st_ino,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_size,
    )


class Verified:
    """The verified files of one store, in memory. A file that is not in it is verified again."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._local: bool | None = None
        self._blobs: dict[str, Stamp] = {}
        self._keys: dict[str, tuple[Stamp, list[Entry]]] = {}
        self._refusals: dict[str, Refusal] = {}

    def note_refusal(self, path: str, seen: Stamp, reason: str) -> None:
        """Remember why a file was refused. If that is wrong later, the result is only a miss."""
        if _is_young(seen) or not self._is_local():
            return
        if len(self._refusals) >= _MAX_REFUSALS:
            self._refusals.clear()
        self._refusals[path] = Refusal(seen, reason)

    def refusal(self, path: str) -> Refusal | None:
        return self._refusals.get(path)

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
        """Keep all entries of a key. `seen` is the stamp of the folder before it was listed."""
        if _is_young(seen) or any(_is_young(stamp(entry.status)) for entry in entries):
            return
        if len(self._keys) >= _MAX_KEYS:
            self._keys.clear()
        self._keys[key] = seen, entries

    def key(self, key: str) -> list[Entry] | None:
        """Return the entries of a key that were kept, or None if the key has changed since."""
        known = self._keys.get(key)
        if known is None or not self._is_local():
            return None
        if not self._is_unchanged(key, *known):
            self._keys.pop(key, None)
            return None
        return known[1]

    def likely(self, key: str, signature: str) -> list[Entry]:
        """Return those of the kept entries that were made for such arguments.

        Only their files are looked at, so that the work does not grow with the number of entries.
        Empty if none are kept, if they have changed, or if a set-up is among all kept entries.
        """
        seen, kept = self._keys.get(key, (None, []))
        found = [each for each in kept if each.manifest.about.get("signature_id") == signature]
        if seen is None or not found or not self._is_local():
            return []
        if any(each.manifest.kind == "set-up" for each in kept):
            return []
        return found if self._is_unchanged(key, seen, found) else []

    def _is_unchanged(self, key: str, seen: Stamp, entries: list[Entry]) -> bool:
        place = f"{key[:2]}/{key}"
        try:
            # Only lstat, nothing is opened: an equal stamp means the same file on any path.
            at = self._folder.tree.hold_part(f"{VERSION}/ac")
            return stamp(syscalls.lstat(place, at.fd)) == seen and all(
                stamp(syscalls.lstat(f"{place}/{manifest.entry}", at.fd)) == stamp(status)
                for manifest, status in entries
            )
        except OSError:
            return False  # the caller reads the key again and finds the reason

    def _is_local(self) -> bool:
        # Asked at the first use: a worker that reads each file once never pays for the question.
        if self._local is None:
            from npugx_cache.store.io.filesystem import is_local

            held = self._folder.tree.hold_part()
            self._local = is_local(held.fd)
        return self._local


def _is_young(seen: Stamp) -> bool:
    _, _, mtime, ctime, _ = seen
    return time.time_ns() - max(mtime, ctime) < _RACY_NS
