"""Gives the counts of this process to Prometheus. Needs the extra `metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.counters import (
    BYPASS_REASONS,
    MISS_REASONS,
    REMOTE_OPERATIONS,
    REMOTE_OUTCOMES,
    Metrics,
    metrics,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from prometheus_client.core import CounterMetricFamily


class _Family(NamedTuple):
    """One metric: its name without the end `_total`, and the field of `Metrics` that it tells.

    `parts` names the field that has the same count by kind, the kinds there are, and their labels:
    each word of a kind is the value of one label.
    """

    name: str
    field: str
    meaning: str
    parts: tuple[str, Collection[str], tuple[str, ...]] | None = None


_REASON = ("reason",)
_REQUESTS = [
    f"{operation} {outcome}" for operation in REMOTE_OPERATIONS for outcome in REMOTE_OUTCOMES
]


FAMILIES = (
    _Family("hits", "hits", "Lookups that were answered by the store."),
    _Family("misses", "misses", "Lookups that compiled.", ("miss_reasons", MISS_REASONS, _REASON)),
    _Family(
        "bypasses",
        "bypasses",
        "Calls that ran without the cache.",
        ("bypass_reasons", BYPASS_REASONS, _REASON),
    ),
    _Family("stored", "stored", "Entries that were published."),
    _Family("not_stored", "not_stored", "Graphs that could not be published."),
    _Family("saved_seconds", "seconds_saved", "What the hits would have taken to compile."),
    _Family("lost_seconds", "seconds_lost", "What the misses took to compile."),
    _Family("read_bytes", "bytes_read", "Bytes that were read from the store."),
    _Family("written_bytes", "bytes_written", "Bytes that were written into the store."),
    _Family("evictions", "evictions", "Entries that this process removed to keep a limit."),
    _Family("evicted_bytes", "bytes_evicted", "Bytes that this process removed to keep a limit."),
    _Family("lock_waits", "lock_waits", "Waits for another process that compiled the same."),
    _Family("lock_wait_seconds", "lock_wait_seconds", "How long these waits took."),
    _Family(
        "remote_requests",
        "remote_requests",
        "What the remote tier was asked, and what came of it.",
        ("remote_requests", _REQUESTS, ("operation", "outcome")),
    ),
    _Family(
        "remote_seconds",
        "remote_seconds",
        "How long the remote tier took.",
        ("remote_seconds", REMOTE_OPERATIONS, ("operation",)),
    ),
    _Family("remote_read_bytes", "remote_bytes_read", "Bytes that came from the remote tier."),
    _Family(
        "remote_written_bytes", "remote_bytes_written", "Bytes that were sent to the remote tier."
    ),
)
"""Every metric. Each is a counter of one process, and its name begins with `npugx_cache_`."""


class PrometheusCollector:
    """The counts of this process for a registry: `REGISTRY.register(PrometheusCollector())`.

    Each scrape reads `npugx_cache.metrics()`; nothing is counted a second time.
    """

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What a registry of `prometheus_client` asks for at each scrape."""
        from prometheus_client.core import CounterMetricFamily

        now = metrics()
        for family in FAMILIES:
            labels = () if family.parts is None else family.parts[2]
            made = CounterMetricFamily(f"npugx_cache_{family.name}", family.meaning, labels=labels)
            for label, number in _samples(family, now):
                made.add_metric(label, number)
            yield made


def _samples(family: _Family, now: Metrics) -> Iterator[tuple[tuple[str, ...], float]]:
    if family.parts is None:
        yield (), getattr(now, family.field)
        return
    field, kinds, _labels = family.parts
    counted = getattr(now, field)
    for kind in kinds:  # those that never came too, so that a first one shows as an increase
        yield tuple(kind.split()), counted.get(kind, 0)


def prometheus_text() -> str:
    """The counts of this process in the text format that Prometheus scrapes.

    For programs without a `/metrics` page of their own; others register a `PrometheusCollector`.
    """
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(PrometheusCollector())
    return generate_latest(registry).decode()
