"""Evicts entries: first whole entries as planned, then blobs that no entry names any more.

Deletes only inside the version folder, and only files whose names a store could have given.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, overload

from npugx_cache.store.content.entries import load
from npugx_cache.store.format.layout import is_digest, is_key, stamp_shard
from npugx_cache.store.io import syscalls
from npugx_cache.store.results import PrunePolicy
from npugx_cache.store.upkeep.eviction import Inventory, Limits, Plan, make_plan
from npugx_cache.store.upkeep.older_formats import age_out
from npugx_cache.store.upkeep.sweep import remove, sweep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npugx_cache.store.format.layout import Folder
    from npugx_cache.store.upkeep.index import Columns, Overview
    from npugx_cache.store.upkeep.usage import Use

GRACE = 3600.0
_JUST_NOW = 2.0
_MIN_ROOM = 64 << 20
_OUT_OF_TIME = "out of time; the next prune removes the rest"


class Removed(NamedTuple):
    """An entry that was evicted. `function` is the name that a listing shows."""

    entry: str
    key: str
    function: str


class Gone(Sequence[Removed]):
    """The evicted entries of an inventory; each `Removed` is made only when it is asked for."""

    def __init__(self, columns: Columns, positions: list[int]) -> None:
        self._columns = columns
        self._positions = positions

    @cached_property
    def _cells(self) -> tuple[list[str], list[str], list[str]]:
        texts = self._columns.texts
        return texts("entry"), texts("key"), texts("function")

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, at: int) -> Removed: ...
    @overload
    def __getitem__(self, at: slice) -> Gone: ...
    def __getitem__(self, at: int | slice) -> Removed | Gone:
        if isinstance(at, slice):
            return Gone(self._columns, self._positions[at])
        entries, keys, functions = self._cells
        position = self._positions[at]
        return Removed(entries[position], keys[position], functions[position])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gone) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """What was removed (or would be, on a dry run) and what is left.

    `swept` counts the leftovers that `sweep` removes; on a dry run, which does not look for the
    others, only temporary files and quarantine. `old_formats` are folders of older releases that
    were removed whole. `stopped` says why the work is incomplete.
    """

    entries: int = 0
    blobs: int = 0
    freed_bytes: int = 0
    kept_entries: int = 0
    kept_bytes: int = 0
    swept: int = 0
    removed: Sequence[Removed] = ()
    old_formats: tuple[str, ...] = ()
    stopped: str | None = None
    dry_run: bool = False


def prune(
    folder: Folder, seen: Overview, policy: PrunePolicy, uses: Mapping[str, Use], limits: Limits
) -> PruneReport:
    """Evict entries of `seen` by the policy. The caller holds the cleaner's lock, if it can."""
    if not seen.complete:
        return PruneReport(stopped=_OUT_OF_TIME, dry_run=limits.dry_run)
    stock = Inventory(seen)
    if limits.room:
        size = _size_with_room(folder, stock.live_bytes(), limits.room)
        policy = PrunePolicy(max_size=size, weigh=policy.weigh)
    plan = make_plan(stock, policy, uses, limits)
    if limits.dry_run:
        report = _promise(folder, stock, policy, plan)
    else:
        report = _Cleaning(folder, stock, policy).run(plan.chosen, limits)
    # Who names single entries says nothing about the folder of an older release.
    if limits.room or report.stopped is not None or policy.entries is not None:
        return report
    gone, freed = age_out(folder, policy, deadline=limits.deadline, dry_run=limits.dry_run)
    return replace(report, old_formats=gone, freed_bytes=report.freed_bytes + freed)


def _size_with_room(folder: Folder, live: int, wanted: int) -> int:
    """Return the size to prune down to: the present size if no prune could make the room."""
    with contextlib.suppress(OSError):
        held = folder.tree.hold_part()
        if live + syscalls.free_bytes(held.fd) < wanted:
            return live
    # More than asked for, because otherwise every publish on the full disk would prune.
    return max(0, live - max(2 * wanted, min(_MIN_ROOM, live // 10)))


def _promise(folder: Folder, stock: Inventory, policy: PrunePolicy, plan: Plan) -> PruneReport:
    garbage = _garbage(stock, policy)
    refused = sum(is_digest(item.entry) for item in stock.refused) if policy.everything else 0
    swept, size = sweep(folder, everything=policy.everything, dry_run=True)
    orphaned = sum([stock.files[digest] for digest in garbage])
    return PruneReport(
        entries=len(plan.chosen),
        blobs=plan.blobs + len(garbage),
        freed_bytes=plan.freed_bytes + orphaned + size,
        kept_entries=len(stock.entry) - len(plan.chosen),
        kept_bytes=plan.kept_bytes,
        swept=swept + refused,
        removed=Gone(stock.columns, plan.chosen),
        dry_run=True,
    )


def _garbage(stock: Inventory, policy: PrunePolicy) -> list[bytes]:
    """Return the blobs to remove that no entry named even before this prune."""
    if policy.everything:
        return stock.orphans(float("-inf"))
    return stock.orphans(GRACE) if stock.complete else []


class _Cleaning:
    """One prune that is no dry run, and what it has removed so far."""

    def __init__(self, folder: Folder, stock: Inventory, policy: PrunePolicy) -> None:
        self._folder = folder
        self._stock = stock
        self._policy = policy
        self._identity = stock.columns.texts("identity")
        self._gone: list[int] = []
        self._kept_bytes = stock.live_bytes()
        self._named = Counter(stock.digests)
        self._blobs = self._freed = self._swept = 0
        self._stopped: str | None = None

    def run(self, chosen: list[int], limits: Limits) -> PruneReport:
        # Without a deadline all of them go, so go folder by folder: a disk is faster that way. With
        # a deadline, the least valuable entries go first.
        unhurried = limits.deadline == float("inf")
        for done, at in enumerate(sorted(chosen) if unhurried else chosen):
            if time.monotonic() > limits.deadline:
                self._stopped = _OUT_OF_TIME
            if self._stopped is not None:
                break
            self._evict(at)
            if limits.progress is not None:
                limits.progress(done + 1, len(chosen))
        if self._stopped is None:
            self._tidy()
        stock, gone = self._stock, set(self._gone)
        return PruneReport(
            entries=len(self._gone),
            blobs=self._blobs,
            freed_bytes=self._freed,
            kept_entries=len(stock.entry) - len(self._gone),
            kept_bytes=self._kept_bytes,
            swept=self._swept,
            removed=Gone(stock.columns, [at for at in chosen if at in gone]),
            stopped=self._stopped,
        )

    def _evict(self, at: int) -> None:
        """Remove a manifest and then its own blobs: a reader finds a whole entry or none."""
        folder, stock = self._folder, self._stock
        key, entry = stock.key[at], stock.entry[at]
        if not is_key(key) or not is_digest(entry):
            return  # a damaged index: such names are never deleted
        path = folder.manifest(key, entry)
        try:
            with folder.tree.place(path) as (place, name):
                if syscalls.lstat(name, place).st_mtime != stock.mtime[at]:
                    return  # published again or used since the scan
                syscalls.unlink(name, place)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._stopped = folder.explain(error, path)
            return
        try:
            folder.tree.rmdir(folder.key(key))
        except OSError:
            stamp_shard(folder, key)  # another entry is left under this key
        else:
            remove(folder, folder.marker(self._identity[at], key))
        self._gone.append(at)
        self._freed += int(stock.manifest_bytes[at])
        self._kept_bytes -= int(stock.manifest_bytes[at])
        for digest in stock.digests_of(at):
            self._named[digest] -= 1
            # Removed at once, because a size limit must hold within the hour of grace as well. A
            # publisher that has just found the blob has touched it, and checks it again after
            # writing its manifest.
            if not self._named[digest] and (stock.complete or self._policy.everything):
                self._kept_bytes -= self._drop_blob(digest, _JUST_NOW)

    def _drop_blob(self, digest: bytes, grace: float) -> int:
        """Remove a blob that no entry names, unless it was touched since; return its size or 0."""
        size = self._stock.files.get(digest)
        if size is None:
            return 0
        path = self._folder.blob(digest.hex())
        try:
            with self._folder.tree.place(path) as (place, name):
                mtime = syscalls.lstat(name, place).st_mtime
                # The time in an index may be old, because a touch does not change the shard.
                seen = self._stock.blob_times[digest]
                if mtime != seen and mtime > self._stock.started - grace:
                    return 0  # touched
                syscalls.unlink(name, place)
        except OSError:
            return 0
        del self._stock.files[digest]
        self._blobs += 1
        self._freed += size
        return size

    def _tidy(self) -> None:
        """Remove blobs and other files that belong to no entry."""
        folder, stock, everything = self._folder, self._stock, self._policy.everything
        for digest in _garbage(stock, self._policy):
            self._drop_blob(digest, _JUST_NOW if everything else GRACE)
        for item in stock.refused:
            if not is_digest(item.entry):
                continue
            if everything:
                # The file stands in an entry's place and would be listed for ever.
                self._swept += remove(folder, folder.manifest(item.key, item.entry))
                stamp_shard(folder, item.key)
            else:
                # `load` moves a damaged file to quarantine, so that the next prune can tell which
                # blobs are garbage.
                load(folder, item.key, item.entry)
        gone = set(self._gone)
        kept = {key for at, key in enumerate(stock.key) if at not in gone}
        swept, size = sweep(folder, everything=everything, dry_run=False, kept=kept)
        self._swept += swept
        self._freed += size
