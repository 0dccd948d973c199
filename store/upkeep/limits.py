"""Keeping a store within its limits: one cleaner at a time, time-boxed where somebody waits."""

from __future__ import annotations

import contextlib
import threading
import time
from array import array
from typing import TYPE_CHECKING, NamedTuple

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

_CLEANER = "c1ea"  # the lock of the one cleaner; too short for a key
_CLEAN_SECONDS = 5.0
_PATIENCE = 0.03
_LOW_WATER = 0.9


class Upkeep:
    """The limits of one store, and what is known of how far it is from them."""

    def __init__(
        self, folder: Folder, usage: Usage, caps: PrunePolicy, state: Path | None = None
    ) -> None:
        self._folder = folder
        self._state = state
        self._usage = usage
        self._caps = caps
        self._mutex = threading.Lock()
        self._cleaning: threading.Thread | None = None

    def prune(self, policy: PrunePolicy, limits: Limits) -> PruneReport:
        from npugx_cache.store.content.lock import NotLocked, Wait, hold
        from npugx_cache.store.io.filesystem import is_local
        from npugx_cache.store.upkeep.index import Index
        from npugx_cache.store.upkeep.prune import PruneReport, prune

        index = Index(self._folder, self._state)
        if limits.dry_run:
            return prune(self._folder, index.overview(), policy, self._usage.load(), limits)
        if self._folder.readonly is not None:
            return PruneReport(stopped=f"read-only: {self._folder.readonly}")
        with hold(self._folder, _CLEANER, Wait(seconds=0)) as answer:
            if isinstance(answer, NotLocked) and answer.held:
                return PruneReport(stopped="another prune of this cache is running")
            local = is_local(self._folder.tree.held().fd)
            seen = index.overview(deadline=limits.deadline, trusting=local)
            report = prune(self._folder, seen, policy, self._usage.load(), limits)
        self._usage.forget(gone.entry for gone in report.removed)
        return report

    def make_room(self, wanted: int) -> bool:
        """Evict on a full disk; tell whether that freed anything."""
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
        """Prune down to the limits, scanning only when they may have been passed.

        The caller waits for a moment only: a large store is cleaned behind its back.
        """
        if self._caps.limits_nothing or not self._may_exceed(entry):
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
        # Also where one is at work: publishing without a pause would outrun it.
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
        from npugx_cache.store.upkeep.limits import grown

        return self._exceeds(grown(self._folder, entry.stored_bytes, 1))

    def _exceeds(self, now: Total | None) -> bool:
        """Whether a total is above the limits, or not known."""
        caps = self._caps
        return (
            now is None
            or (caps.max_size is not None and now.size > caps.max_size)
            or (caps.max_entries is not None and now.entries > caps.max_entries)
        )

    def _clean(self, newest: str) -> None:
        from npugx_cache.store.upkeep.eviction import Limits
        from npugx_cache.store.upkeep.limits import Total, looked, total

        deadline = time.monotonic() + _CLEAN_SECONDS
        limits = Limits(deadline=deadline, protect=newest, low_water=_LOW_WATER)
        try:
            while True:
                before = total(self._folder)
                report = self.prune(self._caps, limits)
                if report.stopped is not None:
                    return
                looked(self._folder, Total(report.kept_bytes, report.kept_entries), before)
                # What was published meanwhile started no cleaner of its own.
                if not self._exceeds(total(self._folder)):
                    return
        except Exception as error:  # noqa: BLE001  # a thread has nobody to raise to
            debug(f"cleaning failed: {error!r}")


# Estimates how large a store is, for all processes that publish into it.
#
# The estimate is a file of records (bytes, entries). The first record is the time of the last full
# look, the second what that look found, and each publish appends one record. If each process
# counted its own entries only, N processes could exceed a limit N times. When the file is missing,
# odd or old, somebody takes a full look.


_NAME = "size"
_RECORD = 16
_MAX_BYTES = 1 << 20
_OLD = 600.0


class Total(NamedTuple):
    size: int
    entries: int


def grown(folder: Folder, size: int, entries: int) -> Total | None:
    """Add what was published and return the total, or None where nobody knows it."""
    with contextlib.suppress(OSError):
        fd = folder.tree.open_append(folder.part(_NAME))
        try:
            # Not into a FIFO, nor through a hard link into another file of the user's.
            if is_writable_in_place(folder, fd):
                syscalls.write_all(fd, array("q", [size, entries]).tobytes())
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


def looked(folder: Folder, found: Total, before: Total | None) -> None:
    """Note what a scan has found. `before` is the total when it began.

    What was published meanwhile may be in both: better counted twice than not at all.
    """
    now = total(folder)
    since = Total(0, 0)
    if before is not None and now is not None:
        since = Total(max(0, now.size - before.size), max(0, now.entries - before.entries))
    numbers = [int(time.time()), 0, found.size + since.size, found.entries + since.entries]
    with contextlib.suppress(OSError):
        data = array("q", numbers).tobytes()
        write_file(folder, folder.part(_NAME), data, durable=False)
