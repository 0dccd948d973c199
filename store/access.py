"""Opens the store of some settings, and opens it again after a fault that may have passed.

A worker lives for months. A burst of open files, a lost mount or a wrong mode at the moment when
the store is opened must not keep the worker from its store until it ends.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from npugx_cache.passing import NEVER, pause_after
from npugx_cache.store.results import Unusable
from npugx_cache.store.tiers import open_store

if TYPE_CHECKING:
    from npugx_cache.config import Settings
    from npugx_cache.store.tiers import Store

_SHARE = 20.0
"""How many times longer than an opening the pause after it is: a lost mount may block for minutes,
and calls must not spend their time with waiting for it."""
_QUICK = 0.1
"""A fault that comes within so many seconds needs no such pause: a compile in vain costs more."""


class Access:
    """The way to a store: opened at the first use, and again when what was missing may be there.

    `unusable` says why no store may be used at all. Safe to use from several threads: two that come
    at once may both open the store, and the later answer stays.
    """

    def __init__(self, settings: Settings, unusable: Unusable | None = None) -> None:
        self._settings = settings
        self._opened: Store | Unusable | None = unusable
        self._lacks: tuple[Unusable, ...] = ()
        self._again = NEVER
        """When the store is opened again, in seconds of `time.monotonic`."""

    def store(self) -> Store | Unusable:
        """The store as it is now; it is opened again where a fault may have passed."""
        opened = self._opened
        if opened is not None and (self._again == NEVER or time.monotonic() < self._again):
            return opened
        return self._open(opened)

    def _open(self, before: Store | Unusable | None) -> Store | Unusable:
        started = time.monotonic()
        opened = open_store(self._settings)
        lacks = (opened,) if isinstance(opened, Unusable) else opened.lacks
        if not lacks:
            self._opened, self._lacks, self._again = opened, lacks, NEVER
            return opened
        took = time.monotonic() - started
        pause = min(pause_after(each.kind) for each in lacks)
        self._again = started + took + max(pause, _SHARE * took if took > _QUICK else 0.0)
        # A store that was opened is kept where the new one has no more: it knows verified files.
        kept = before is not None and (
            lacks == self._lacks
            or (isinstance(opened, Unusable) and not isinstance(before, Unusable))
        )
        if before is not None and kept:
            return before
        self._opened, self._lacks = opened, lacks
        return opened
