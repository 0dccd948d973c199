"""Eviction: whole entries, least recently used first, then whatever nothing names any more.

Deletes only inside the version folder and only names that the store itself gives.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npugx_cache.store import syscalls
from npugx_cache.store.entries import Entry, load_all
from npugx_cache.store.layout import is_digest, is_shard, listdir, stamp_shard
from npugx_cache.store.policy import PrunePolicy
from npugx_cache.store.sweep import remove, sweep

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from npugx_cache.store.layout import Folder
    from npugx_cache.store.manifest import Manifest
    from npugx_cache.store.results import Refused
    from npugx_cache.store.usage import Use

GRACE = 3600.0
_CHEAPEST = 0.01  # seconds: a compile that took nothing is not worth nothing
_MIN_ROOM = 64 << 20
_OUT_OF_TIME = "out of time; the rest is left to the next one"


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """What was removed (or would be, on a dry run) and what is left.

    `swept` counts leftovers that were no entry: old temporaries, markers, quarantined files,
    locks. `stopped` says why the work is incomplete.
    """

    entries: int = 0
    blobs: int = 0
    freed_bytes: int = 0
    kept_entries: int = 0
    kept_bytes: int = 0
    swept: int = 0
    removed: tuple[Manifest, ...] = ()
    stopped: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How a prune goes about it. `protect` is the entry that must stay: the newest one.

    `low_water` is the share of `max_size` to prune down to once that is exceeded. `room` asks
    for so many bytes on a full disk, whatever the policy.
    """

    dry_run: bool = False
    deadline: float = float("inf")
    protect: str = ""
    low_water: float = 1.0
    room: int = 0
    progress: Callable[[int, int], None] | None = None


@dataclass(slots=True, kw_only=True)
class _Scan:
    """What lies in the store. Entries by id, which is one under all keys."""

    entries: dict[str, Entry] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    named: dict[str, int] = field(default_factory=dict)
    blobs: dict[str, os.stat_result] = field(default_factory=dict)
    started: float = 0.0

    @property
    def complete(self) -> bool:
        """Tell whether a blob that nothing names is garbage.

        A manifest that could not be read just now (EIO, another owner) may name any of them.
        """
        return not self.refused

    def live_bytes(self) -> int:
        blobs = sum(self.blobs[name].st_size for name in self.named if name in self.blobs)
        return blobs + sum(entry.size for entry in self.entries.values())


@dataclass(slots=True, kw_only=True)
class _Tally:
    removed: list[Manifest] = field(default_factory=list)
    blobs: int = 0
    freed: int = 0
    stopped: str | None = None


def prune(
    folder: Folder, policy: PrunePolicy, uses: Mapping[str, Use], limits: Limits
) -> PruneReport:
    """Evict what the policy says. The caller holds the cleaner's lock."""
    tally = _Tally()
    scan = _scan(folder, limits)
    if scan is None:
        return PruneReport(stopped=_OUT_OF_TIME, dry_run=limits.dry_run)
    if limits.room:
        size = _size_with_room(folder, scan.live_bytes(), limits.room)
        policy = PrunePolicy(max_size=size, weigh=policy.weigh)
    chosen = _choose(scan, policy, uses, limits)
    for done, entry in enumerate(chosen):
        if time.monotonic() > limits.deadline:
            tally.stopped = _OUT_OF_TIME
            break
        _evict(folder, scan, entry, limits, tally)
        if limits.progress is not None:
            limits.progress(done + 1, len(chosen))
    if tally.stopped is None:
        _drop_orphans(folder, scan, policy, limits, tally)
    swept = 0
    if tally.stopped is None:
        swept = _drop_refused(folder, scan, limits) if policy.everything else 0
        more, bytes_swept = sweep(folder, everything=policy.everything, dry_run=limits.dry_run)
        swept, tally.freed = swept + more, tally.freed + bytes_swept
    return PruneReport(
        entries=len(tally.removed),
        blobs=tally.blobs,
        freed_bytes=tally.freed,
        kept_entries=len(scan.entries),
        kept_bytes=scan.live_bytes(),
        swept=swept,
        removed=tuple(tally.removed),
        stopped=tally.stopped,
        dry_run=limits.dry_run,
    )


def _size_with_room(folder: Folder, live: int, wanted: int) -> int:
    """Return the size to prune down to; all of it where even that would not make the room."""
    with contextlib.suppress(OSError):
        if live + syscalls.free_bytes(str(folder.root)) < wanted:
            return live
    # Some more than asked for, or every publish on the full disk would come here.
    return max(0, live - max(2 * wanted, min(_MIN_ROOM, live // 10)))


def _scan(folder: Folder, limits: Limits) -> _Scan | None:
    # Blobs before manifests: a blob published in between is younger than its listing and not
    # in it, so it can't be taken for garbage.
    scan = _Scan(started=time.time())
    for shard in filter(is_shard, listdir(folder.part("cas"))):
        if time.monotonic() > limits.deadline:
            return None
        for name in listdir(folder.part(f"cas/{shard}")):
            if is_digest(name) and name[:2] == shard:
                with contextlib.suppress(OSError):
                    scan.blobs[name] = syscalls.lstat(folder.blob(name))
    for item in load_all(folder):
        if time.monotonic() > limits.deadline:
            return None
        if not isinstance(item, Entry):
            scan.refused.append(item)
            continue
        scan.entries[item.manifest.entry] = item
        for digest in _digests(item.manifest):
            scan.named[digest] = scan.named.get(digest, 0) + 1
    return scan


def _digests(manifest: Manifest) -> set[str]:
    return {ref.sha256 for ref in manifest.blobs}


def _choose(
    scan: _Scan, policy: PrunePolicy, uses: Mapping[str, Use], limits: Limits
) -> list[Entry]:
    """Return the entries to evict, the least worth first."""

    def last_used(entry: Entry) -> float:
        use = uses.get(entry.manifest.entry)
        return entry.mtime if use is None else max(entry.mtime, use.last_used)

    def worth(entry: Entry) -> float:
        if policy.weigh == "lru":
            return last_used(entry)
        size = entry.size + sum(ref.stored_size for ref in entry.manifest.blobs)
        age = max(1.0, scan.started - last_used(entry))
        return max(_CHEAPEST, entry.manifest.cost_seconds) / (age * size)

    ordered = sorted(scan.entries.values(), key=worth)
    if policy.everything:
        return ordered
    size, count = scan.live_bytes(), len(ordered)
    most = _target(policy.max_size, size, limits)
    many = _target(policy.max_entries, count, limits)
    oldest = float("-inf")
    if policy.older_than is not None:
        oldest = scan.started - policy.older_than
    named = dict(scan.named)
    chosen: list[Entry] = []
    for entry in ordered:
        if entry.manifest.entry == limits.protect:
            continue
        if size > most or count > many or last_used(entry) < oldest:
            chosen.append(entry)
            count -= 1
            size -= entry.size + sum(
                scan.blobs[digest].st_size for digest in _release(named, entry) & scan.blobs.keys()
            )
    return chosen


def _target(limit: int | None, now: int, limits: Limits) -> float:
    """Return what to prune down to: some less than the limit, once that is exceeded."""
    if limit is None:
        return float("inf")
    return limit * limits.low_water if now > limit else limit


def _release(named: dict[str, int], entry: Entry) -> set[str]:
    """Take an entry's names out of the count and return the blobs that nothing names now."""
    unnamed: set[str] = set()
    for digest in _digests(entry.manifest):
        named[digest] -= 1
        if named[digest] == 0:
            del named[digest]
            unnamed.add(digest)
    return unnamed


def _evict(folder: Folder, scan: _Scan, entry: Entry, limits: Limits, tally: _Tally) -> None:
    """Remove a manifest and then its own blobs: a reader finds a whole entry or none."""
    manifest = entry.manifest
    path = folder.manifest(manifest.key, manifest.entry)
    if not limits.dry_run:
        try:
            if syscalls.lstat(path).st_mtime != entry.mtime:
                return  # published again or used since the scan
        except FileNotFoundError:
            pass
        except OSError as error:
            tally.stopped = folder.explain(error, path)
            return
        if not remove(path):
            tally.stopped = f"{folder.relative(path)} can't be removed"
            return
        try:
            syscalls.rmdir(folder.key(manifest.key))
        except OSError:
            stamp_shard(folder, manifest.key)  # another entry is left under this key
    del scan.entries[manifest.entry]
    tally.removed.append(manifest)
    tally.freed += entry.size
    for digest in _release(scan.named, entry):
        # Deleting them at once keeps a size limit true within the hour of grace; a publisher
        # that has just found one of them has touched it, and looks again after its manifest.
        if scan.complete:
            _drop_blob(folder, scan, digest, limits, tally)


def _drop_orphans(
    folder: Folder, scan: _Scan, policy: PrunePolicy, limits: Limits, tally: _Tally
) -> None:
    if not scan.complete and not policy.everything:
        return
    grace = 0.0 if policy.everything else GRACE
    for digest in sorted(scan.blobs.keys() - scan.named.keys()):
        if scan.started - scan.blobs[digest].st_mtime >= grace or policy.everything:
            _drop_blob(folder, scan, digest, limits, tally)


def _drop_refused(folder: Folder, scan: _Scan, limits: Limits) -> int:
    """Remove what stands in an entry's place and is none: it would be listed for ever."""
    count = 0
    for item in scan.refused:
        if is_digest(item.entry):
            path = folder.manifest(item.key, item.entry)
            count += limits.dry_run or remove(path)
            if not limits.dry_run:
                stamp_shard(folder, item.key)
    return count


def _drop_blob(folder: Folder, scan: _Scan, digest: str, limits: Limits, tally: _Tally) -> None:
    seen = scan.blobs.get(digest)
    if seen is None:
        return
    if not limits.dry_run:
        try:
            now = syscalls.lstat(folder.blob(digest))
        except OSError:
            return
        if now.st_mtime_ns != seen.st_mtime_ns or not remove(folder.blob(digest)):
            return
    del scan.blobs[digest]
    tally.blobs += 1
    tally.freed += seen.st_size
