"""Decides which entries to evict, the least valuable first. Works on columns and reads no file."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import add, sub
from typing import TYPE_CHECKING, assert_never

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npugx_cache.store.results import PrunePolicy
    from npugx_cache.store.upkeep.index import Overview
    from npugx_cache.store.upkeep.usage import Use

_CHEAPEST = 0.01  # seconds; with a cost of 0, size and last use would not count at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How a prune proceeds. `protect` is the id of the entry that must stay: the newest one.

    `deadline` is in seconds of `time.monotonic`. `low_water` is the fraction of a limit to prune
    down to once the limit is exceeded. `room` is how many bytes are needed on a full disk; the
    limits of the policy don't count then.
    """

    dry_run: bool = False
    deadline: float = float("inf")
    protect: str = ""
    low_water: float = 1.0
    room: int = 0
    progress: Callable[[int, int], None] | None = None


class Inventory:
    """What lies in a store, as one list per property: one object per entry would be too slow."""

    def __init__(self, seen: Overview) -> None:
        self.started = time.time()
        self.refused = seen.refused
        self.columns = seen.columns
        self.mtime = seen.columns.numbers("mtime")
        self.manifest_bytes = list(map(int, seen.columns.numbers("manifest_bytes")))
        self.blobs = list(map(int, seen.columns.numbers("blobs")))
        self.digests = seen.columns.digests()
        self.files = seen.blob_sizes()
        # The size of each of `digests`, None if there is no such file.
        self.sizes = list(map(self.files.get, self.digests))
        self.named = set(self.digests)
        self._first = [0, *accumulate(self.blobs)]
        self._seen = seen

    @cached_property
    def entry(self) -> list[str]:
        return self.columns.texts("entry")

    @cached_property
    def key(self) -> list[str]:
        return self.columns.texts("key")

    @cached_property
    def blob_times(self) -> dict[bytes, float]:
        return self._seen.blob_times()

    @cached_property
    def shared_blobs(self) -> Counter[bytes]:
        """How many times a blob is named, for the blobs that are named more than once."""
        if len(self.named) == len(self.digests):
            return Counter()
        return Counter({name: n for name, n in Counter(self.digests).items() if n > 1})

    @property
    def complete(self) -> bool:
        """Tell whether every manifest was read, so that a blob that none of them names is garbage.

        A manifest that could not be read just now (EIO, another owner) may name any blob.
        """
        return not self.refused

    def digests_of(self, at: int) -> list[bytes]:
        return self.digests[self._first[at] : self._first[at + 1]]

    def per_entry(self, values: list[int]) -> list[int]:
        """Return the sum for each entry of `values`, which has one value for each of `digests`."""
        sums = [0, *accumulate(values)]
        ends = list(map(sums.__getitem__, self._first))
        return list(map(sub, ends[1:], ends))

    def live_bytes(self) -> int:
        """Return the size of all manifests and of the blobs that they name."""
        twice = sum((n - 1) * self.files.get(name, 0) for name, n in self.shared_blobs.items())
        return sum(filter(None, self.sizes)) - twice + sum(self.manifest_bytes)

    def orphans(self, grace: float) -> list[bytes]:
        """Return the blobs that no manifest names and that are older than `grace` seconds."""
        if not self.shared_blobs and len(self.files) == len(self.sizes) - self.sizes.count(None):
            return []
        oldest = self.started - grace
        unnamed = self.files.keys() - self.named
        return sorted(digest for digest in unnamed if self.blob_times[digest] <= oldest)


@dataclass(slots=True, kw_only=True)
class Plan:
    """The positions of the entries to evict, and what their eviction frees."""

    chosen: list[int]
    blobs: int
    freed_bytes: int
    kept_bytes: int


def make_plan(
    stock: Inventory, policy: PrunePolicy, uses: Mapping[str, Use], limits: Limits
) -> Plan:
    used = _last_used(stock, uses)
    order = sorted(range(len(used)), key=_worth(stock, policy, used).__getitem__)
    release = _Release(stock, drops=stock.complete or policy.everything)
    live = size = stock.live_bytes()
    count = len(order)
    most = _target(policy.max_size, size, limits)
    many = _target(policy.max_entries, count, limits)
    oldest = float("-inf")
    if policy.older_than is not None:
        oldest = stock.started - policy.older_than
    if policy.everything:
        most = many = -1.0
    chosen: list[int] = []
    if policy.bypasses:
        kinds = stock.columns.texts("kind")
        order, most = [at for at in order if kinds[at] == "bypass"], -1.0
    if policy.entries is not None:
        order, most = [at for at in order if stock.entry[at] in policy.entries], -1.0
    for at in order:
        if size <= most and count <= many and used[at] >= oldest:
            if policy.weigh == "lru":
                break  # the entries that follow were used later
            continue
        if limits.protect and stock.entry[at] == limits.protect:
            continue
        chosen.append(at)
        count -= 1
        size -= release.size(at)
    return Plan(
        chosen=chosen, blobs=release.blobs(chosen), freed_bytes=live - size, kept_bytes=size
    )


class _Release:
    """Computes what an eviction frees: the manifest, and the blobs that no other entry names now.

    `drops` tells whether blobs are removed at all.
    """

    def __init__(self, stock: Inventory, *, drops: bool) -> None:
        self._stock = stock
        self._left = Counter(stock.shared_blobs) if drops else Counter[bytes]()
        self._shared_blobs = 0
        if not drops:
            sizes = self._own_blobs = [0] * len(stock.blobs)
        else:
            shared = stock.shared_blobs
            own = [
                None if name in shared else size
                for name, size in zip(stock.digests, stock.sizes, strict=True)
            ]
            sizes = stock.per_entry([size or 0 for size in own])
            self._own_blobs = stock.blobs
            if None in own:
                self._own_blobs = stock.per_entry([size is not None for size in own])
        self._own: list[int] = list(map(add, stock.manifest_bytes, sizes))

    def size(self, at: int) -> int:
        size = self._own[at]
        if self._left:
            for name in self._stock.digests_of(at):
                if name in self._left:
                    self._left[name] -= 1
                    if not self._left[name] and name in self._stock.files:
                        self._shared_blobs += 1
                        size += self._stock.files[name]
        return size

    def blobs(self, chosen: list[int]) -> int:
        return sum(map(self._own_blobs.__getitem__, chosen)) + self._shared_blobs


def _last_used(stock: Inventory, uses: Mapping[str, Use]) -> list[float]:
    if not uses:
        return stock.mtime
    counted = [uses[entry].last_used if entry in uses else 0.0 for entry in stock.entry]
    return list(map(max, stock.mtime, counted))


def _worth(stock: Inventory, policy: PrunePolicy, used: list[float]) -> list[float]:
    if policy.weigh == "lru":
        return used
    if policy.weigh != "cost":
        assert_never(policy.weigh)  # a new policy needs its branch here
    costs = stock.columns.numbers("cost_seconds")
    sizes = stock.columns.numbers("stored_bytes")
    return [
        max(_CHEAPEST, cost) / (max(1.0, stock.started - last) * size)
        for cost, last, size in zip(costs, used, sizes, strict=True)
    ]


def _target(limit: int | None, now: int, limits: Limits) -> float:
    """Return what to prune down to: somewhat less than the limit, if the limit is exceeded."""
    if limit is None:
        return float("inf")
    return limit * limits.low_water if now > limit else limit
