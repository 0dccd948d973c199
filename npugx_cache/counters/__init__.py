"""Counts what lookups and stores come to: of each function, and of the process as a whole.

Stores count here too, so this imports neither torch nor logging.
"""

from __future__ import annotations

import os
import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from npugx_cache.interpreter.forks import survive_forks
from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

MISS_REASONS = {
    "first": "the store has no entry of this function",
    "no_store": "the cache is off, or its folder can't be used",
    "code": "code of the function, or code that it calls, is another",
    "options": "the backend, an option, a pattern or a decomposition is another",
    "versions": "torch, Python, this package or the platform is another",
    "device": "the processor, the device or its software is another",
    "settings": "a switch of torch or of its compilers is another",
    "tensors": "a tensor has another size, type or place",
    "values": "any other value is another: an argument, an attribute, a global",
    "damaged": "the store has an entry and could not deliver it",
}
"""Why lookups miss, in few words: by the entry that fits the call best, and its first reason."""

BYPASS_REASONS = {
    "refused": "the function can't be traced and stored as one graph",
    "differs": "a new graph gives another result than the function itself",
    "failed_run": "a graph failed, or does not fit, where the function itself can run",
    "recompile_limit": "calls have caused as many compiles as they may",
    "on_miss": "NPUGX_CACHE_ON_MISS=eager forbids the compile",
    "busy": "something else in this process traces or compiles at the same time",
    "unsupported": "this torch or Python is not served, or not in its present state",
    "fault": "a fault of the cache, see the log",
}
"""Why calls run without the cache, in few words."""

REMOTE_OPERATIONS = {
    "lookup": "a call asked for the entries of a key, and waited",
    "list": "the names in a folder",
    "read": "an object",
    "stat": "the size of an object",
    "write": "an object was sent",
    "create": "an object was sent if there was none: somebody wants to compile alone",
    "delete": "an object was removed",
}
"""What the remote tier is asked. Lookups and writes in the background consist of the others."""

REMOTE_OUTCOMES = {
    "ok": "done; a lookup has brought an entry",
    "absent": "there is no such object; a lookup has brought nothing",
    "taken": "another host has created the object",
    "timeout": "no answer in time",
    "denied": "the engine denies the access",
    "failed": "any other fault, or wrong bytes",
    "breaker_open": "not asked, because the tier has failed several times",
    "unusable": "not asked, because this process or these settings don't allow it",
}
"""What came of a request to the remote tier, in few words."""


class CacheInfo(NamedTuple):
    """Counts since the function was decorated, in this process.

    A lookup happens when no specialisation that is already bound accepts a call. hits: lookups
    answered by the store; misses: lookups that compiled; bypasses: calls that ran without the
    cache; stored: entries published; entries: specialisations bound now; graphs: the graphs that
    are captured on a device now (`capture_plan.GraphInfo`), the most used first; seconds_saved:
    what the hits would have taken to compile; seconds_lost: what the misses took; miss_reasons and
    bypass_reasons: how many had which kind of reason (`Metrics`).
    """

    hits: int
    misses: int
    bypasses: int
    stored: int
    entries: int
    graphs: tuple[Any, ...] = ()
    seconds_saved: float = 0.0
    seconds_lost: float = 0.0
    miss_reasons: Mapping[str, int] = MappingProxyType({})
    bypass_reasons: Mapping[str, int] = MappingProxyType({})

    def __repr__(self) -> str:
        """The counts in one line, without seconds, which differ each time, and without reasons."""
        shown = (f"{name}={getattr(self, name)!r}" for name in self._fields[:6])
        return f"CacheInfo({', '.join(shown)})"


class Warmed(NamedTuple):
    """What was ready before the first call, and why the rest was not."""

    entries: int = 0
    graphs: int = 0
    refused: tuple[str, ...] = ()


class Metrics(NamedTuple):
    """Counts of a whole process, since it began or was forked.

    hits, misses, bypasses, stored, seconds_saved and seconds_lost are those of `CacheInfo`, of all
    functions together. not_stored: graphs that were compiled and could not be published.

    miss_reasons and bypass_reasons: how many had which kind of reason. The kinds are few and have
    fixed names, so that they can be labels of a time series; `.explain()` has the reasons in full.

    bytes_read: of blobs, as they are stored; bytes_written: of entries that were published, or
    copied into a nearer folder. evictions and bytes_evicted: what prunes by this process removed.
    lock_waits: how often a compile had to wait for another process, and lock_wait_seconds how long.

    remote_requests: what the remote tier was asked, and what came of it, by such names as
    "read ok" (`REMOTE_OPERATIONS`, `REMOTE_OUTCOMES`). remote_seconds: how long it took, by
    operation. remote_bytes_read and remote_bytes_written: what came from the tier and was sent.
    """

    hits: int
    misses: int
    bypasses: int
    stored: int
    not_stored: int
    seconds_saved: float
    seconds_lost: float
    miss_reasons: Mapping[str, int]
    bypass_reasons: Mapping[str, int]
    bytes_read: int
    bytes_written: int
    evictions: int
    bytes_evicted: int
    lock_waits: int
    lock_wait_seconds: float
    remote_requests: Mapping[str, int]
    remote_seconds: Mapping[str, float]
    remote_bytes_read: int
    remote_bytes_written: int


class Counters:
    """Thread-safe counts by name and kind of reason. `total` counts what several of them count."""

    def __init__(self, total: Counters | None = None) -> None:
        self._total = total
        # Re-entrant, because a signal handler may call a cached function in the middle of a count.
        self._lock = threading.RLock()
        survive_forks(self, "_lock")
        self._counts: dict[tuple[str, str], float] = {}

    def add(self, name: str, amount: float = 1, reason: str = "") -> None:
        with self._lock:
            self._counts[name, reason] = self._counts.get((name, reason), 0) + amount
        if self._total is not None:
            self._total.add(name, amount, reason)

    def count_lookup(self, outcome: str, reason: str = "", seconds: float = 0.0) -> None:
        """Count a lookup. A hit has saved these seconds of compiling, a miss has lost them."""
        self.add(outcome, reason=reason)
        if seconds:
            self.add("seconds_saved" if outcome == "hits" else "seconds_lost", seconds)

    def forget(self) -> None:
        with self._lock:
            self._counts.clear()

    def info(self, entries: int) -> CacheInfo:
        counts = _Counted(self._copy())
        return CacheInfo(
            hits=counts.number("hits"),
            misses=counts.number("misses"),
            bypasses=counts.number("bypasses"),
            stored=counts.number("stored"),
            entries=entries,
            seconds_saved=counts.sum("seconds_saved"),
            seconds_lost=counts.sum("seconds_lost"),
            miss_reasons=counts.reasons("misses"),
            bypass_reasons=counts.reasons("bypasses"),
        )

    def metrics(self) -> Metrics:
        counts = _Counted(self._copy())
        reasons = {"miss_reasons": "misses", "bypass_reasons": "bypasses"}
        reasons |= {name: name for name in ("remote_requests", "remote_seconds")}
        values: dict[str, Any] = {
            name: counts.reasons(reasons[name])
            if name in reasons
            else (counts.sum if "seconds" in name else counts.number)(name)
            for name in Metrics._fields
        }
        return Metrics(**values)

    def _copy(self) -> dict[tuple[str, str], float]:
        with self._lock:
            return dict(self._counts)


class _Counted:
    def __init__(self, counts: Mapping[tuple[str, str], float]) -> None:
        self._counts = counts

    def sum(self, name: str) -> float:
        return sum((n for (of, _), n in self._counts.items() if of == name), 0.0)

    def number(self, name: str) -> int:
        return int(self.sum(name))

    def reasons(self, name: str) -> dict[str, Any]:
        number = float if "seconds" in name else int
        return {why: number(n) for (of, why), n in self._counts.items() if of == name}


PROCESS = Counters()
"""The counts of this process."""


def asked_remote(operation: str, outcome: str, seconds: float) -> None:
    """Count something that the remote tier was asked, or was not asked."""
    PROCESS.add("remote_requests", reason=f"{operation} {outcome}")
    PROCESS.add("remote_seconds", seconds, operation)


# The parent tells its own counts. Told by each child again, they would be summed several times.
os.register_at_fork(after_in_child=PROCESS.forget)


def metrics() -> Metrics:
    """What the lookups and the stores of this process came to, all functions together."""
    return PROCESS.metrics()
