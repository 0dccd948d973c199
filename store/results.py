"""The answers of a store. Expected failures are values with a reason that a person understands.

Named tuples, like the other values on the way of a hit: making a dataclass takes 0.4 to 0.8 ms of
every start, and each instance ten times as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from npugx_cache.store.format.manifest import Manifest


class Miss(NamedTuple):
    reason: str


class Unusable(NamedTuple):
    """The folder can't be a store: `reason` says what is wrong, where, and what to do."""

    reason: str


class Refused(NamedTuple):
    """A file in an entry's place that is not taken for an entry."""

    entry: str
    reason: str
    key: str = ""


class Candidates(NamedTuple):
    """The entries of one key, most recently used first.

    `bypasses` are notes of calls that can't be cached: no graphs, but what saves a compile in vain.
    """

    manifests: tuple[Manifest, ...] = ()
    refused: tuple[Refused, ...] = ()
    missing_reason: str | None = None
    bypasses: tuple[Manifest, ...] = ()


class Published(NamedTuple):
    manifest: Manifest


class NotStored(NamedTuple):
    reason: str


class Listed(NamedTuple):
    """One readable entry; `stored_bytes` counts a blob shared with others in full."""

    manifest: Manifest
    stored_bytes: int
    hits: int
    last_used: float


# The limits of a store, and which entries go first when a limit is exceeded.


Weigh = Literal["lru", "cost"]


class PrunePolicy(NamedTuple):
    """What to keep: `max_size` in bytes, `older_than` in seconds since the last use.

    `weigh` says what goes first: what was not used for longest, or, weighed by cost, what was
    not used for long, is large and was cheap to compile. `bypasses`: the stored notes of calls that
    can't be cached go, and nothing else does.
    """

    max_size: int | None = None
    max_entries: int | None = None
    older_than: float | None = None
    weigh: Weigh = "lru"
    everything: bool = False
    bypasses: bool = False

    @property
    def limits_nothing(self) -> bool:
        return self.max_size is None and self.max_entries is None and self.older_than is None
