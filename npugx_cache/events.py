"""Tells what happened: counters, reasons, and one log line for each lookup."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

from npugx_cache import config
from npugx_cache.errors import OptionError
from npugx_cache.forks import survive_forks

logger = logging.getLogger("npugx_cache")
_heeded = threading.Lock()
"""Held from the first `heed_environment` on."""


def heed_environment() -> None:
    """Do once in a process what the environment asks of our logger. Raises nothing.

    Variables that look like ours and are none are named, because whoever set one waits for it to
    change something.
    """
    if not _heeded.acquire(blocking=False):
        return
    try:
        level = config.log_level()
    except OptionError as error:
        logger.warning("%s; it is ignored", error)
        level = None
    if level is not None:
        from npugx_cache import log_output

        log_output.show(logger, level)
    if config.unknown_variables():
        from npugx_cache import unknown_variables

        for sentence in unknown_variables.sentences().values():
            logger.warning("%s", sentence)


class CacheInfo(NamedTuple):
    """Counts since the function was decorated, in this process.

    A lookup happens when no specialisation that is already bound accepts a call. hits: lookups
    answered by the store; misses: lookups that compiled; bypasses: calls that ran without the
    cache; stored: entries published; entries: specialisations bound now; graphs: the graphs that
    are captured on a device now (`capture_plan.GraphInfo`), the most used first.
    """

    hits: int
    misses: int
    bypasses: int
    stored: int
    entries: int
    graphs: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a lookup found about one stored entry: in most cases, why it was not used.

    `entry` is the id of the entry, or empty where the reasons are about no entry.
    """

    entry: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        reasons = "; ".join(self.reasons)
        return f"{self.entry[:12]}: {reasons}" if self.entry else reasons


class Counters:
    """Thread-safe counts behind `CacheInfo`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        survive_forks(self, "_lock")
        self._counts = dict.fromkeys(("hits", "misses", "bypasses", "stored"), 0)

    def add(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def info(self, entries: int) -> CacheInfo:
        with self._lock:
            found = self._counts
            return CacheInfo(
                found["hits"], found["misses"], found["bypasses"], found["stored"], entries
            )
