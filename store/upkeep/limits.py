"""Keeps a store within its limits. One cleaner runs at a time, for some seconds if a call waits."""

from __future__ import annotations

import contextlib
import threading
import time
from array import array
from typing import TYPE_CHECKING

from npugx_cache.counters import PROCESS
from npugx_cache.records import NamedTuple
from npugx_cache.store.content.files import Fault, is_writable_in_place, read_file, write_file
from npugx_cache.store.io import syscalls
from npugx_cache.store.upkeep.derived import debug

if TYPE_CHECKING:
    from pathlib import Path

    from npugx_cache.store.content.publish import Prepared
    from npugx_cache.store.format.layout import Folder
    from npugx_cache.store.results import PrunePolicy
    from npugx_cache.store.upkeep.eviction import Limits
    from npugx_cache.store.upkeep.prune import PruneReport
    from npugx_cache.store.upkeep.usage import Usage

_CLEANER = "c1ea"  # the name of the cleaner's lock, shorter than any key
_CLEAN_SECONDS = 5.0
_PATIENCE = 0.03
_LOW_WATER = 0.9


class Upkeep:
    """Keeps one store within its limits (`caps`)."""

    def __init__(self, folder: Folder, usage: Usage, caps: PrunePolicy, state: Path) -> None:
        self._folder = folder
        self._state = state
        self._usage = usage
        self._caps = caps
        self._mutex = threading.Lock()
        self._cleaning: threading.Thread | None = None

    def prune(self, policy: PrunePolicy, limits: Limits) -> PruneReport:
        from npugx_cache.store.content.lock import NotLocked, hold
        from npugx_cache.store.io.filesystem import is_local
        from npugx_cache.store.upkeep.index import Index
        from npugx_cache.store.upkeep.prune import PruneReport, prune

        index = Index(self._folder, self._state)
        if limits.dry_run:
            return prune(self._folder, index.overview(), policy, self._usage.load(), limits)
        if self._folder.readonly is not None:
            return PruneReport(stopped=f"read-only: {self._folder.readonly}")
        with hold(self._folder, _CLEANER, wait=0) as answer:
            if isinstance(answer, NotLocked) and answer.held:
                return PruneReport(stopped="another prune of this cache is running")
            held = self._folder.tree.hold_part()
            local = is_local(held.fd)
            seen = index.overview(deadline=limits.deadline, trusting=local)
            report = prune(self._folder, seen, policy, self._usage.load(), limits)
        self._usage.forget(gone.entry for gone in report.removed)
        PROCESS.add("evictions", report.entries)
        PROCESS.add("bytes_evicted", report.freed_bytes)
        return report

    def make_room(self, wanted: int) -> bool:
        """Evict entries to free `wanted` bytes on a full disk; tell whether any byte was freed."""
        import logging

        from npugx_cache.store.results import PrunePolicy
        from npugx_cache.store.upkeep.eviction import Limits

        deadline = time.monotonic() + _CLEAN_SECONDS
        policy = PrunePolicy(weigh=self._caps.weigh)
        report = self.prune(policy, Limits(deadline=deadline, room=wanted))
        logging.getLogger("npugx_cache").info(
            "disk full: removed %d older entries of the cache", report.entries
        )
        return report.freed_bytes > 0

    def keep_to_limits(self, entry: Prepared) -> None:
        """Prune the store down to its limits, if it may exceed them after a publish of `entry`.

        A thread does that. The caller waits for it for a moment only (30 ms).
        """
        if self._caps.limits_nothing or not self._exceeds(
            add_to_estimate(self._folder, entry.stored_bytes)
        ):
            return
        with self._mutex:
            if self._cleaning is None or not self._cleaning.is_alive():
                self._cleaning = threading.Thread(
                    target=self._clean,
                    args=(entry.manifest.entry,),
                    name="npugx-cache-cleaner",
                    daemon=True,
                )
                self._cleaning.start()
        # Waits also for a cleaner that is running already: publishes without a pause outrun it.
        self.settle(_PATIENCE)

    def settle(self, seconds: float = _CLEAN_SECONDS) -> None:
        """Wait for the cleaner of this process, if one runs, at most so many seconds."""
        cleaning = self._cleaning
        if cleaning is not None:
            cleaning.join(seconds)

    def forget_parent(self) -> None:
        """Reset in a forked child, which has no cleaner thread and whose mutex might stay held."""
        self._mutex = threading.Lock()
        self._cleaning = None

    def _exceeds(self, now: Total | None) -> bool:
        """Whether a total exceeds the limits, or is not known."""
        caps = self._caps
        return (
            now is None
            or (caps.max_size is not None and now.size > caps.max_size)
            or (caps.max_entries is not None and now.entries > caps.max_entries)
        )

    def _clean(self, newest: str) -> None:
        from npugx_cache.store.upkeep.eviction import Limits

        deadline = time.monotonic() + _CLEAN_SECONDS
        limits = Limits(deadline=deadline, protect=newest, low_water=_LOW_WATER)
        try:
            while True:
                before = total(self._folder)
                report = self.prune(self._caps, limits)
                if report.stopped is not None:
                    return
                replace_estimate(
                    self._folder, Total(report.kept_bytes, report.kept_entries), before
                )
                # Entries that were published meanwhile have started no cleaner of their own.
                if not self._exceeds(total(self._folder)):
                    return
        except Exception as error:  # noqa: BLE001  # nobody would catch an exception of this thread
            debug(f"cleaning failed: {error!r}")


# Estimates how large a store is, for all processes that publish into it.
#
# The estimate is a file of records (bytes, entries). The first record is the time of the last full
# scan, the second what that scan found, and each publish appends one record. If each process
# counted only its own entries, N processes could exceed a limit N times. If the file is missing,
# damaged or older than 10 minutes, the next publish scans the store.


_NAME = "size"
_RECORD = 16
_MAX_BYTES = 1 << 20
_OLD = 600.0


class Total(NamedTuple):
    size: int
    entries: int


def add_to_estimate(folder: Folder, size: int) -> Total | None:
    """Add one published entry to the estimate; return the total, or None if it is not known."""
    with contextlib.suppress(OSError):
        fd = folder.tree.open_append(folder.part(_NAME))
        try:
            # Not into a FIFO, and not through a hard link into another file of the user.
            if is_writable_in_place(folder, fd):
                syscalls.write_all(fd, array("q", [size, 1]).tobytes())
        finally:
            syscalls.close(fd)
    return total(folder)


def total(folder: Folder) -> Total | None:
    found = read_file(folder, folder.part(_NAME), limit=_MAX_BYTES)
    if isinstance(found, Fault) or len(found.data) % _RECORD or not found.data:
        return None
    numbers = array("q", found.data)
    if not 0 <= time.time() - numbers[0] < _OLD:
        return None
    return Total(sum(numbers[2::2]), sum(numbers[3::2]))


def replace_estimate(folder: Folder, found: Total, before: Total | None) -> None:
    """Replace the estimate by what a scan has found. `before` is the total when the scan began.

    Entries published during the scan may be counted twice, which is better than not at all.
    """
    now = total(folder)
    since = Total(0, 0)
    if before is not None and now is not None:
        since = Total(max(0, now.size - before.size), max(0, now.entries - before.entries))
    numbers = [int(time.time()), 0, found.size + since.size, found.entries + since.entries]
    with contextlib.suppress(OSError):
        data = array("q", numbers).tobytes()
        write_file(folder, folder.part(_NAME), data, durable=False)
