"""Keeping a store within its limits: one cleaner at a time, time-boxed where somebody waits."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from npugx_cache.store.derived import debug

if TYPE_CHECKING:
    from npugx_cache.store.layout import Folder
    from npugx_cache.store.policy import PrunePolicy
    from npugx_cache.store.prune import Limits, PruneReport
    from npugx_cache.store.publish import Prepared
    from npugx_cache.store.usage import Usage

_CLEANER = "c1ea"  # the lock of the one cleaner; too short for a key
_CLEAN_SECONDS = 5.0
_PATIENCE = 0.05
_ESTIMATE_SECONDS = 60.0
_LOW_WATER = 0.9


class Upkeep:
    """The limits of one store, and what is known of how far it is from them."""

    def __init__(self, folder: Folder, usage: Usage, caps: PrunePolicy) -> None:
        self._folder = folder
        self._usage = usage
        self._caps = caps
        self._size = self._entries = 0
        self._scanned = float("-inf")
        self._mutex = threading.Lock()
        self._cleaning: threading.Thread | None = None

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

        from npugx_cache.store.policy import PrunePolicy
        from npugx_cache.store.prune import Limits

        deadline = time.monotonic() + _CLEAN_SECONDS
        policy = PrunePolicy(weigh=self._caps.weigh)
        report = self.prune(policy, Limits(deadline=deadline, room=wanted))
        logging.getLogger("npugx_cache").info(
            "disk full: removed %d older entries of the cache", report.entries
        )
        return report.freed_bytes > 0

    def keep_to_limits(self, entry: Prepared) -> None:
        """Prune down to the limits, scanning only when they may have been passed.

        The caller waits for a moment only: a large store is cleaned behind its back.
        """
        if self._caps.limits_nothing or not self._may_exceed(entry):
            return
        with self._mutex:
            if self._cleaning is not None and self._cleaning.is_alive():
                return
            self._cleaning = threading.Thread(
                target=self._clean,
                args=(entry.manifest.entry,),
                name="npugx-cache-cleaner",
                daemon=True,
            )
            self._cleaning.start()
        self.settle(_PATIENCE)

    def settle(self, seconds: float = _CLEAN_SECONDS) -> None:
        """Wait for the cleaner of this process, where one runs."""
        cleaning = self._cleaning
        if cleaning is not None:
            cleaning.join(seconds)

    def forget_parent(self) -> None:
        """Start anew in a forked child: it has no cleaner, and its mutex might stay held."""
        self._mutex = threading.Lock()
        self._cleaning = None

    def _may_exceed(self, entry: Prepared) -> bool:
        caps = self._caps
        with self._mutex:
            self._size += entry.stored_bytes
            self._entries += 1
            return (
                time.monotonic() - self._scanned > _ESTIMATE_SECONDS
                or (caps.max_size is not None and self._size > caps.max_size)
                or (caps.max_entries is not None and self._entries > caps.max_entries)
            )

    def _clean(self, newest: str) -> None:
        from npugx_cache.store.prune import Limits

        started = time.monotonic()
        limits = Limits(deadline=started + _CLEAN_SECONDS, protect=newest, low_water=_LOW_WATER)
        try:
            report = self.prune(self._caps, limits)
        except Exception as error:  # noqa: BLE001  # a thread has nobody to raise to
            debug(f"cleaning failed: {error!r}")
            return
        if report.stopped is None:
            with self._mutex:
                self._size, self._entries = report.kept_bytes, report.kept_entries
                self._scanned = started
