"""The result types of a store. An expected failure is a value with a reason for people.

They are named tuples, like all values on the hit path: defining a dataclass takes 0.4 to 0.8 ms of
every start, and making an instance of one takes ten times as long as making a named tuple.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    from npugx_cache.config import EvictionPolicy
    from npugx_cache.passing import Reason
    from npugx_cache.store.format.manifest import Manifest


REMOVED = "the entry was removed while it was looked up"
"""The reason where a prune was quicker than a reader, which is no damage."""


class Miss(NamedTuple):
    reason: str


class Unusable(NamedTuple):
    """The folder can't be used as a store. `reason` says what is wrong, where, and what to do.

    `kind` is a row of `passing.PAUSES`, which says whether the reason may pass; None: an error
    without a number.
    """

    reason: str
    kind: Reason | int | None


class Refused(NamedTuple):
    """A file in the place of an entry that is not accepted as an entry.

    `entry` is empty if the reason concerns the whole folder of the key.
    """

    entry: str
    reason: str
    key: str = ""


class Candidates(NamedTuple):
    """The entries of one key, most recently used first.

    `bypasses` are notes that a call can't be cached. A bypass holds no graph; it saves others a
    compile in vain. `set_ups` are what has to be done to a model before a graph of the key fits.
    `missing_reason` says why there is no graph.
    """

    manifests: tuple[Manifest, ...] = ()
    refused: tuple[Refused, ...] = ()
    missing_reason: str | None = None
    bypasses: tuple[Manifest, ...] = ()
    set_ups: tuple[Manifest, ...] = ()


class Fetched(NamedTuple):
    """What came from the remote tier: how many new entries, and what kept others from coming.

    `outcome` says how the lookup at the tier ended, as one of `counters.REMOTE_OUTCOMES`.
    """

    new: int = 0
    reason: str | None = None
    outcome: str = "unusable"


class Published(NamedTuple):
    manifest: Manifest


class NotStored(NamedTuple):
    reason: str


class Listed(NamedTuple):
    """One readable entry. `stored_bytes` counts every blob in full, also one that entries share.

    `last_used` is in seconds since the epoch.
    """

    manifest: Manifest
    stored_bytes: int
    hits: int
    last_used: float


# The limits of a store, and which entries go first when a limit is exceeded.


class PrunePolicy(NamedTuple):
    """Which entries to evict: `max_size` in bytes, `older_than` in seconds since the last use.

    `weigh` says which entry goes first: "lru" the one whose last use is the longest ago, "cost" the
    one with the smallest compile time per byte and per second since its last use. `everything`
    evicts all entries. `bypasses` evicts the stored bypasses and no other entry, `entries` those
    with these ids and no other.
    """

    max_size: int | None = None
    max_entries: int | None = None
    older_than: float | None = None
    weigh: EvictionPolicy = "lru"
    everything: bool = False
    bypasses: bool = False
    entries: frozenset[str] | None = None

    @property
    def limits_nothing(self) -> bool:
        return self.max_size is None and self.max_entries is None and self.older_than is None
