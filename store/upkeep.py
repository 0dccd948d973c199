"""Keeping a store within its limits: one cleaner at a time, time-boxed where somebody waits."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npugx_cache.store.layout import Folder
    from npugx_cache.store.prune import Limits, PrunePolicy, PruneReport
    from npugx_cache.store.publish import Prepared
    from npugx_cache.store.usage import Usage

_CLEANER = "c1ea"  # the lock of the one cleaner; too short for a key
_CLEAN_SECONDS = 5.0
_ESTIMATE_SECONDS = 60.0
_LOW_WATER = 0.9


class Upkeep:
    """The limits of one store, and what is known of how far it is from them."""

    def __init__(self, folder: Folder, usage: Usage, max_size: int | None) -> None:
        self._folder = folder
        self._usage = usage
        self._max_size = max_size
        self.forget_parent()
        self._estimate: tuple[int, float] = (0, float("-inf"))

    def prune(self, policy: PrunePolicy, limits: Limits) -> PruneReport:
        from npugx_cache.store.lock import NotLocked, Wait, hold
        from npugx_cache.store.prune import PruneReport, prune

        if limits.dry_run:
            # Not even a bad file is moved away.
            looking = self._folder.look_only("a dry run changes nothing")
            return prune(looking, policy, self._usage.load(), limits)
        if self._folder.readonly is not None:
            return PruneReport(stopped=f"read-only: {self._folder.readonly}")
        with hold(self._folder, _CLEANER, Wait(seconds=0)) as answer:
            if isinstance(answer, NotLocked) and answer.held:
                return PruneReport(stopped="another prune of this cache is running")
            report = prune(self._folder, policy, self._usage.load(), limits)
        self._usage.forget(manifest.entry for manifest in report.removed)
        return report

    def make_room(self, wanted: int) -> bool:
        """Evict on a full disk; tell whether that freed anything."""
        import logging

        from npugx_cache.store.prune import Limits, PrunePolicy

        deadline = time.monotonic() + _CLEAN_SECONDS
        report = self.prune(PrunePolicy(), Limits(deadline=deadline, room=wanted))
        logging.getLogger("npugx_cache").info(
            "disk full: removed %d older entries of the cache", report.entries
        )
        return report.freed_bytes > 0

    def keep_to_size(self, entry: Prepared) -> None:
        """Prune down to the limit, scanning only when the sum may have passed it."""
        from npugx_cache.store.prune import Limits, PrunePolicy

        if self._max_size is None:
            return
        now = time.monotonic()
        with self._mutex:
            size, taken = self._estimate
            size += entry.stored_bytes
            self._estimate = (size, taken)
            if size <= self._max_size and now - taken < _ESTIMATE_SECONDS:
                return
        limits = Limits(
            deadline=now + _CLEAN_SECONDS,
            protect=entry.manifest.entry,
            low_water=_LOW_WATER,
        )
        report = self.prune(PrunePolicy(max_size=self._max_size), limits)
        if report.stopped is None:
            with self._mutex:
                self._estimate = (report.kept_bytes, now)

    def forget_parent(self) -> None:
        """Start anew in a forked child: a mutex held at the fork is never released there."""
        self._mutex = threading.Lock()
