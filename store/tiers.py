"""Layered stores: a node-local folder, a shared folder, read-only baked folders, a remote tier."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from npugx_cache.counters import asked_remote
from npugx_cache.store.folder_store import FolderStore, open_folder
from npugx_cache.store.results import (
    REMOVED,
    Candidates,
    Fetched,
    Listed,
    Miss,
    Published,
    Unusable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from npugx_cache.config import Settings
    from npugx_cache.store.content.lock import Locked, NotLocked
    from npugx_cache.store.format.manifest import Draft, Manifest
    from npugx_cache.store.format.plain import Plain
    from npugx_cache.store.remote.tier import RemoteTier
    from npugx_cache.store.results import NotStored, PrunePolicy, Refused
    from npugx_cache.store.upkeep.prune import PruneReport


class Layered:
    """A store of several folders. Reads ask `tiers` in turn; `main` is the tier that workers share.

    Hits and publishes also fill `local`. A tier that fails counts as a miss of that tier. `remote`
    is the address of the remote tier. It is asked by `fetch` alone, which copies what it has to a
    folder. `no_remote` says why it is not asked at all. `missing` are the folders that could not be
    opened.
    """

    def __init__(
        self,
        tiers: tuple[FolderStore, ...],
        *,
        main: FolderStore,
        local: FolderStore | None,
        remote: str | None = None,
        missing: tuple[Unusable, ...] = (),
    ) -> None:
        self.tiers, self.main, self.local = tiers, main, local
        self.lacks = (*missing, *[each for tier in tiers for each in tier.lacks])
        self.no_remote: str | None = None
        self._remote_address = remote
        self._opened_remote: RemoteTier | None = None

    @property
    def nearest(self) -> FolderStore:
        """The folder that entries of the remote tier are copied to."""
        return self.main if self.local is None or self.local.readonly else self.local

    def _remote(self) -> RemoteTier | None:
        # Opened when it is needed, because a hit of a folder must not load it.
        if self._remote_address is None or self.no_remote is not None:
            return None
        if self._opened_remote is None:
            from npugx_cache.store.remote.tier import RemoteTier

            self._opened_remote = RemoteTier(self._remote_address, self.nearest)
        return self._opened_remote

    def fetch(self, key: str, first: str) -> Fetched | None:
        remote = self._remote()
        if remote is None:
            if self.no_remote is None:
                return None
            asked_remote("lookup", "unusable", 0.0)
            return Fetched(reason=self.no_remote)
        return remote.fetch(key, first)

    @property
    def root(self) -> Path:
        return self.main.root

    @property
    def readonly(self) -> str | None:
        return (
            self.main.readonly if self.local is None else self.main.readonly and self.local.readonly
        )

    def candidates(self, key: str) -> Candidates:
        manifests: dict[str, Manifest] = {}
        bypasses: dict[str, Manifest] = {}
        set_ups: dict[str, Manifest] = {}
        refused: list[Refused] = []
        reasons: list[str] = []
        for tier in self.tiers:
            # An entry that a nearer tier has is not read again from a slower tier.
            known = manifests.keys() | bypasses.keys() | set_ups.keys()
            found = tier.candidates(key, skip=known)
            manifests.update((manifest.entry, manifest) for manifest in found.manifests)
            bypasses.update((manifest.entry, manifest) for manifest in found.bypasses)
            set_ups.update((manifest.entry, manifest) for manifest in found.set_ups)
            refused.extend(found.refused)
            if found.missing_reason is not None:
                reasons.append(found.missing_reason)
        return Candidates(
            manifests=tuple(manifests.values()),
            refused=tuple(refused),
            missing_reason=None if manifests else max(reasons, key=len),
            bypasses=tuple(bypasses.values()),
            set_ups=tuple(set_ups.values()),
        )

    def likely(self, key: str, signature: str) -> tuple[Manifest, ...]:
        """Those of the nearest folder, which has each entry that was hit."""
        return self.tiers[0].likely(key, signature)

    def siblings(self, identity: str, *, limit: int = 64) -> tuple[Manifest, ...]:
        found: dict[str, Manifest] = {}
        for tier in self.tiers:
            for manifest in tier.siblings(identity, limit=limit):
                found.setdefault(manifest.entry, manifest)
        newest = sorted(found.values(), key=lambda manifest: manifest.created, reverse=True)
        return tuple(newest[:limit])

    def find(self, prefix: str) -> Manifest | Miss:
        misses: list[Miss] = []
        for tier in self.tiers:
            found = tier.find(prefix)
            if not isinstance(found, Miss):
                return found
            misses.append(found)
        return max(misses, key=lambda miss: len(miss.reason))

    def read(self, manifest: Manifest, names: Iterable[str]) -> Mapping[str, bytes] | Miss:
        wanted = tuple(names)
        missed = Miss(reason=REMOVED)
        for tier in self.tiers:
            answer = tier.read(manifest, wanted)
            if not isinstance(answer, Miss):
                return answer
            if answer.reason != REMOVED:  # what most tiers say of an entry that only others have
                missed = answer
        return missed

    def publish(self, draft: Draft) -> Published | NotStored:
        answer = self.main.publish(draft)
        nearer = answer if self.local is None else self.local.publish(draft)
        # Static kernels stay on their host, because nobody fetches them.
        if isinstance(nearer, Published) and draft.kind != "kernels":
            remote = self._remote()
            if remote is not None:
                remote.publish(nearer.manifest)
        return answer if isinstance(answer, Published) else nearer

    def lock(
        self,
        name: str,
        *,
        wait: float | None,
        needed_within: float | None = None,
        done: Callable[[], bool] | None = None,
    ) -> AbstractContextManager[Locked | NotLocked]:
        use_local = self.local is not None and self.main.readonly is not None
        tier = self.local if use_local and self.local is not None else self.main
        remote = self._remote()
        if remote is not None:
            return remote.lock(tier, name, wait=wait, needed_within=needed_within, done=done)
        return tier.lock(name, wait=wait, needed_within=needed_within, done=done)

    def quarantine(self, manifest: Manifest, reason: str) -> None:
        for tier in self.tiers:
            tier.quarantine(manifest, reason)
        remote = self._remote()
        if remote is not None:
            remote.withdraw(manifest)

    def record_hit(self, manifest: Manifest) -> None:
        self.main.record_hit(manifest)
        if self.local is None:
            return
        self.local.record_hit(manifest)
        if not self.local.holds(manifest):
            self._fill(self.local, manifest)

    def _fill(self, local: FolderStore, manifest: Manifest) -> None:
        """Copy an entry to the local tier as it is stored, signature included. Best effort."""
        for tier in self.tiers:
            if tier is not local and tier.holds(manifest):
                local.adopt(tier, manifest)
                return

    def read_record(self, entry: str) -> Plain:
        found = (tier.read_record(entry) for tier in self.tiers)
        return next((record for record in found if record is not None), None)

    def write_record(self, entry: str, data: Plain) -> str | None:
        nearer = self.local.write_record(entry, data) if self.local is not None else None
        return self.main.write_record(entry, data) or nearer

    def flush(self) -> None:
        for tier in self.tiers:
            tier.flush()

    def listing(self) -> Iterator[Listed | Refused]:
        seen: set[str] = set()
        for tier in self.tiers:
            for item in tier.listing():
                if not isinstance(item, Listed):
                    yield item
                elif item.manifest.entry not in seen:
                    seen.add(item.manifest.entry)
                    yield item

    def prune(
        self,
        policy: PrunePolicy,
        *,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> PruneReport:
        """Prune the shared folder. The local folder prunes itself when entries are added to it."""
        return self.main.prune(policy, dry_run=dry_run, progress=progress)


Store: TypeAlias = FolderStore | Layered
"""What callers use, whether a store is one folder or several: finds verified entries by key.

Returns its faults as values; no method raises OSError. Thread-safe, and safe to use in a forked
child. The methods are described in `FolderStore`.
"""


def open_store(settings: Settings) -> Store | Unusable:
    """Open the folders that the settings name; leave out, with one WARNING, what can't be used.

    Creates missing folders, except baked ones, and none in mode "readonly".
    """
    main = open_folder(settings)
    layers = (settings.local_dir, *settings.baked_dirs, settings.remote)
    if settings.mode == "off" or not any(layers):
        return main
    from dataclasses import replace

    beside = (settings.local_dir,) if settings.local_dir is not None else ()
    local = [open_folder(replace(settings, cache_dir=path)) for path in beside]
    baked = [
        open_folder(replace(settings, cache_dir=path, mode="readonly"))
        for path in settings.baked_dirs
    ]
    found = (*local, main, *baked)
    tiers = tuple(tier for tier in found if isinstance(tier, FolderStore))
    if not tiers:
        return main
    missing = tuple(tier for tier in found if isinstance(tier, Unusable))
    for each in missing:
        _warn_once(f"a folder of the cache is not used: {each.reason}")
    main = tiers[0] if isinstance(main, Unusable) else main
    near = [tier for tier in local if isinstance(tier, FolderStore) and tier is not main]
    store = Layered(
        tiers, main=main, local=near[0] if near else None, remote=settings.remote, missing=missing
    )
    if settings.remote is not None:
        store.no_remote = _why_no_remote(settings, store.nearest)
    return store


def _why_no_remote(settings: Settings, nearest: FolderStore) -> str | None:
    """Return why the remote tier can't be used with these settings, after a warning, or None."""
    if settings.trust != "signed":
        reason = (
            "the remote tier is not used: it needs a key (NPUGX_CACHE_KEY_FILE), because whoever "
            "can write there could give this process code to run"
        )
    elif nearest.readonly is not None:
        reason = f"the remote tier is not used: its entries can't be kept ({nearest.readonly})"
    else:
        return None
    _warn_once(reason)
    return reason


def _warn_once(text: str) -> None:
    from npugx_cache import events  # not before, because it loads logging

    events.warn_once(text)
