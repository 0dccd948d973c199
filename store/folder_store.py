"""`FolderStore`: the store that is one folder of verified entries."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from typing import TYPE_CHECKING

from npugx_cache.config import state_folder
from npugx_cache.counters import PROCESS
from npugx_cache.store.content import blobs, entries
from npugx_cache.store.content.files import quarantine
from npugx_cache.store.content.opening import (
    folder_of,
    look_again,
    prepare_folder,
    tell_who_can_mend,
    unusable,
)
from npugx_cache.store.content.verified import Verified
from npugx_cache.store.format.layout import Folder, stamp_shard
from npugx_cache.store.format.plain import Malformed
from npugx_cache.store.results import (
    REMOVED,
    Candidates,
    Listed,
    Miss,
    NotStored,
    PrunePolicy,
    Published,
    Refused,
    Unusable,
)
from npugx_cache.store.upkeep import flushing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from npugx_cache.config import Settings
    from npugx_cache.store.content.lock import Locked, NotLocked
    from npugx_cache.store.content.publish import Prepared
    from npugx_cache.store.format.manifest import Draft, Manifest
    from npugx_cache.store.format.plain import Plain
    from npugx_cache.store.results import Fetched
    from npugx_cache.store.upkeep.index import Overview
    from npugx_cache.store.upkeep.limits import Upkeep
    from npugx_cache.store.upkeep.prune import PruneReport
    from npugx_cache.store.upkeep.usage import Usage, Use


_TOUCH_EVERY = 3600.0


class FolderStore:
    """The store that is one folder (`tiers.Store`). Make one with `open_folder`."""

    def __init__(
        self, folder: Folder, *, caps: PrunePolicy, lacks: tuple[Unusable, ...] = ()
    ) -> None:
        self._folder = folder
        self._caps = caps
        self.lacks = lacks
        """What could not be done when the store was opened, although the settings ask for it."""
        # Resolved now: a timer writes the hits later, when the environment may name another folder.
        self._state = state_folder()
        self._verified = Verified(folder)
        self._upkeep: Upkeep | None = None
        self._mutex = threading.Lock()
        self._hits: dict[str, tuple[int, str, float]] = {}
        flushing.note_open_store(self)

    @property
    def root(self) -> Path:
        """The folder that new entries go to."""
        from pathlib import Path

        return Path(self._folder.root)

    @property
    def folder(self) -> Folder:
        return self._folder

    @property
    def readonly(self) -> str | None:
        """Why nothing is ever written to this store, or None."""
        return self._folder.readonly

    def candidates(self, key: str, *, skip: Collection[str] = ()) -> Candidates:
        """The entries under a key, most recently used first, and the stored bypasses.

        Entries in `skip` are left out.
        """
        return entries.candidates(self._folder, key, skip, self._verified)

    def likely(self, key: str, signature: str) -> tuple[Manifest, ...]:
        """The graphs under a key that were made for such arguments, as far as they are in memory.

        `signature` is their `signature_id`. Empty also if a set-up has to come first. If none of
        them fits, ask for the `candidates`.
        """
        return entries.likely(key, signature, self._verified)

    def siblings(self, identity: str, *, limit: int = 64) -> tuple[Manifest, ...]:
        """The entries of one function under any key, newest first, without bypasses."""
        return entries.siblings(self._folder, identity, limit)

    def find(self, prefix: str) -> Manifest | Miss:
        """The only entry whose id starts with `prefix`, or a miss if none or several do."""
        return entries.find(self._folder, prefix)

    def read(self, manifest: Manifest, names: Iterable[str]) -> Mapping[str, bytes] | Miss:
        """Return the verified, uncompressed bytes of the blobs with these names, or a miss."""
        refs = {ref.name: ref for ref in manifest.blobs}
        found: dict[str, bytes] = {}
        for name in names:
            if name not in refs:
                return Miss(reason=f"the entry has no blob {name!r}")
            try:
                data = blobs.read(self._folder, refs[name], self._verified)
            except Malformed as error:
                self.quarantine(manifest, str(error))
                return Miss(reason=str(error))
            except MemoryError:
                return Miss(reason=f"blob {name}: not enough memory")
            if isinstance(data, Miss):
                return data if self.holds(manifest) else Miss(reason=REMOVED)
            found[name] = data
        PROCESS.add("bytes_read", sum([refs[name].stored_size for name in found]))
        return found

    def publish(self, draft: Draft) -> Published | NotStored:
        """Write an entry. Other processes see the whole entry or nothing of it."""
        if self._folder.readonly is not None:
            return NotStored(reason=f"read-only: {self._folder.readonly}")
        from npugx_cache.store.content.lock import note_cost
        from npugx_cache.store.content.publish import prepare

        try:
            entry = prepare(draft, self._folder.secret)
        except Malformed as error:
            return NotStored(reason=str(error))
        fault = self._put(entry)
        if fault is not None:
            return NotStored(reason=fault)
        self.flush()
        note_cost(draft.cost_seconds)
        self._kept_up().keep_to_limits(entry)
        return Published(manifest=entry.manifest)

    def _put(self, entry: Prepared) -> str | None:
        """Write an entry; return why that failed, or None."""
        from npugx_cache.store.content.publish import write

        folder = self._folder
        try:
            fault = look_again(folder)
            if fault is None:
                write(folder, entry, self._kept_up().make_room)
        except OSError as error:
            fault = folder.explain(error)
            if error.errno == errno.EACCES and folder.trust == "group":
                tell_who_can_mend(folder, fault)
        if fault is None:
            PROCESS.add("bytes_written", entry.stored_bytes)
        return fault

    def fetch(self, key: str, first: str) -> Fetched | None:  # noqa: ARG002 - as a layered store
        """Copy the entries of a key from the remote tier; None, because there is none here.

        `first` is the signature of the call; entries that may fit the call come first.
        """
        return None

    def holds(self, manifest: Manifest) -> bool:
        return self._folder.has(self._folder.manifest(manifest.key, manifest.entry))

    def adopt(self, other: FolderStore, manifest: Manifest) -> str | None:
        """Copy an entry from another store; return why that failed, or None."""
        from npugx_cache.store.content.publish import take

        entry = take(other.folder, manifest.key, manifest.entry)
        return entry.reason if isinstance(entry, Miss) else self.add(entry)

    def add(self, entry: Prepared) -> str | None:
        """Write an entry that another store has made; return why that failed, or None."""
        if self._folder.readonly is not None:
            return self._folder.readonly
        fault = self._put(entry)
        if fault is None:
            self._kept_up().keep_to_limits(entry)
        return fault

    def lock(
        self,
        name: str,
        *,
        wait: float | None,
        needed_within: float | None = None,
        done: Callable[[], bool] | None = None,
    ) -> AbstractContextManager[Locked | NotLocked]:
        """Hold the lock of a name (hex), waiting at most `wait` seconds or until `done()`.

        If `wait` is None, the limit follows from how long the last work under this lock took. Half
        of `needed_within` is a limit as well: after so many seconds, others who depend on this
        worker give up.
        """
        from npugx_cache.store.content.lock import hold

        return hold(self._folder, name, wait=wait, needed_within=needed_within, done=done)

    def quarantine(self, manifest: Manifest, reason: str) -> None:
        """Move an entry to quarantine, because its verified bytes could not be decoded."""
        path = self._folder.manifest(manifest.key, manifest.entry)
        quarantine(self._folder, path, reason, None)

    def record_hit(self, manifest: Manifest) -> None:
        """Count a hit in memory. A timer calls `flush` some seconds later."""
        now = time.time()
        with self._mutex:
            first = not self._hits
            count, key, _ = self._hits.get(manifest.entry, (0, manifest.key, now))
            self._hits[manifest.entry] = (count + 1, key, now)
        if first:
            flushing.has_hits(self)

    def flush(self) -> None:
        """Write the counted hits, and set the mtime of the entries that were hit to now."""
        # First, so that a hit that is counted meanwhile schedules a flush of its own.
        flushing.note_flush(self)
        with self._mutex:
            hits, self._hits = self._hits, {}
        if not hits or self._folder.readonly is not None:
            return
        for entry, (_, key, used) in hits.items():
            path = self._folder.manifest(key, entry)
            with contextlib.suppress(OSError):
                # At most once an hour, as the mount option relatime does, because a write for each
                # read would cost more than the read. Also if the mtime is of the future: under a
                # wrong clock, a file would be the one that was used last for good.
                if abs(used - self._folder.tree.lstat(path).st_mtime) > _TOUCH_EVERY:
                    self._folder.tree.touch(path)
                    stamp_shard(self._folder, key)
        from npugx_cache.store.upkeep.usage import Use

        self._usage().add(
            {entry: Use(hits=n, last_used=used) for entry, (n, _, used) in hits.items()}
        )

    def read_record(self, entry: str) -> Plain:
        """The record of an entry (data that may change after the publish), or None."""
        from npugx_cache.store.upkeep import records

        return records.read(self._folder, entry)

    def write_record(self, entry: str, data: Plain) -> str | None:
        """Replace the record of an entry; return why that failed, or None."""
        from npugx_cache.store.upkeep import records

        return records.write(self._folder, entry, data)

    def settle(self) -> None:
        """Wait some seconds for the background cleaner, which a publish may have started."""
        if self._upkeep is not None:
            self._upkeep.settle()

    def listing(self) -> Iterator[Listed | Refused]:
        """Every entry, read from its manifest; `Refused` for a file that can't be read as one."""
        from npugx_cache.store.upkeep.usage import Use

        uses = self._usage().load()
        for item in entries.load_all(self._folder):
            if isinstance(item, Refused):
                yield item
                continue
            manifest = item.manifest
            use = uses.get(manifest.entry, Use())
            yield Listed(
                manifest=manifest,
                stored_bytes=item.status.st_size + sum(ref.stored_size for ref in manifest.blobs),
                hits=use.hits,
                last_used=max(use.last_used, item.status.st_mtime),
            )

    def overview(self) -> tuple[Overview, Mapping[str, Use]]:
        """Return a summary of every entry, from the index, and the hit counters by entry."""
        from npugx_cache.store.upkeep.index import Index

        return Index(self._folder, self._state).overview(), self._usage().load()

    def hits_since(self, when: float) -> int:
        """Count the hits of this host since a time, to the hour, of at most a month."""
        return self._usage().hits_since(when)

    def hits_by_hour(self) -> Mapping[int, int]:
        """The hits of this host, by the time at which an hour begins, of at most a month."""
        return self._usage().hits_by_hour()

    def reset_hits(self) -> None:
        """Count the hits of this host from zero again."""
        self._usage().reset()

    def prune(
        self,
        policy: PrunePolicy,
        *,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> PruneReport:
        """Evict entries by the policy; calls `progress(done, total)` after each one."""
        from npugx_cache.store.upkeep.eviction import Limits

        self.flush()
        return self._kept_up().prune(policy, Limits(dry_run=dry_run, progress=progress))

    def forget_parent(self) -> None:
        """Reset the state of this store in a forked child."""
        # The parent writes its own hits, and a mutex held at the fork would never be released.
        self._mutex = threading.Lock()
        self._hits = {}
        if self._upkeep is not None:
            self._upkeep.forget_parent()

    def _usage(self) -> Usage:
        from npugx_cache.store.upkeep.usage import Usage  # a hit needs none

        return Usage(self._folder.root, self._state)

    def _kept_up(self) -> Upkeep:
        """What keeps the store within its limits, made when something is written or removed."""
        from npugx_cache.store.upkeep.limits import Upkeep  # a hit needs none

        usage = self._usage()
        with self._mutex:
            if self._upkeep is None:
                self._upkeep = Upkeep(self._folder, usage, self._caps, self._state)
            return self._upkeep


def open_folder(settings: Settings) -> FolderStore | Unusable:
    """Open `settings.cache_dir` (no other tier) after checking its owner and its mode.

    Creates the folder if it is missing, except in mode "readonly".
    """
    if settings.mode == "off":
        return Unusable("the cache is switched off (NPUGX_CACHE=off)", "off")
    try:
        folder = folder_of(settings)
    except OSError as error:
        return unusable(Folder(str(settings.cache_dir)), error)
    if isinstance(folder, Unusable):
        return folder
    opened = prepare_folder(folder)
    if isinstance(opened, Unusable):
        return opened
    lacks: tuple[Unusable, ...] = ()
    if opened.readonly is not None and folder.readonly is None:
        lacks = (Unusable(opened.readonly, "read-only"),)
    caps = PrunePolicy(
        max_size=settings.max_size,
        max_entries=settings.max_entries,
        older_than=settings.max_age,
        weigh=settings.policy,
    )
    return FolderStore(opened, caps=caps, lacks=lacks)
