"""What the store answers. Expected failures are values with a reason a person understands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npugx_cache.store.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """The folder can't be a store: `reason` says what is wrong, where, and what to do."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A file in an entry's place that is not taken for an entry."""

    entry: str
    reason: str
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The entries of one key, most recently used first."""

    manifests: tuple[Manifest, ...] = ()
    refused: tuple[Refused, ...] = ()
    missing_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class NotStored:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """The lock is held. `waited` is in seconds."""

    waited: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLocked:
    """Go on without the lock: it saves work and never carries correctness.

    `appeared`: `done` said yes while waiting. `held`: somebody else still has it.
    """

    reason: str
    waited: float = 0.0
    appeared: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One readable entry; `stored_bytes` counts a blob shared with others in full."""

    manifest: Manifest
    stored_bytes: int
    hits: int
    last_used: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePolicy:
    """What to keep: `max_size` in bytes, `older_than` in seconds since the last use."""

    max_size: int | None = None
    older_than: float | None = None
    everything: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """What was removed (or would be, on a dry run) and what is left.

    `swept` counts leftovers that were no entry: old temporaries, markers, quarantined files,
    locks. `stopped` says why the work is incomplete.
    """

    entries: int = 0
    blobs: int = 0
    freed_bytes: int = 0
    kept_entries: int = 0
    kept_bytes: int = 0
    swept: int = 0
    removed: tuple[Manifest, ...] = ()
    stopped: str | None = None
    dry_run: bool = False
