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
class Listed:
    """One readable entry; `stored_bytes` counts a blob shared with others in full."""

    manifest: Manifest
    stored_bytes: int
    hits: int
    last_used: float
