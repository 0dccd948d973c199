"""The limits of a store, and which entries go first when a limit is exceeded."""

from __future__ import annotations

from typing import Literal, NamedTuple

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
