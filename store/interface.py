"""The protocol `Store`: what callers use, whether a store is one folder or several layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from npugx_cache.store.content.lock import Locked, NotLocked
    from npugx_cache.store.format.manifest import Draft, Manifest
    from npugx_cache.store.format.plain import Plain
    from npugx_cache.store.results import (
        Candidates,
        Listed,
        Miss,
        NotStored,
        PrunePolicy,
        Published,
        Refused,
    )
    from npugx_cache.store.upkeep.prune import PruneReport


@runtime_checkable
class Store(Protocol):
    """Finds verified entries by key. Returns its faults as values; none of them raises OSError.

    Thread-safe, and safe to use in a forked child. Make one with `open_store`.
    """

    @property
    def root(self) -> Path:
        """The folder that new entries go to."""

    @property
    def readonly(self) -> str | None:
        """Why nothing is ever written to this store, or None."""

    def candidates(self, key: str) -> Candidates:
        """The entries under a key, most recently used first, and the stored bypasses."""

    def siblings(self, identity: str, *, limit: int = 64) -> tuple[Manifest, ...]:
        """The entries of one function under any key, newest first, without bypasses."""

    def find(self, prefix: str) -> Manifest | Miss:
        """The only entry whose id starts with `prefix`, or a miss if none or several do."""

    def read(self, manifest: Manifest, names: Iterable[str]) -> Mapping[str, bytes] | Miss:
        """The verified, uncompressed bytes of the blobs with these names, or a miss."""

    def publish(self, draft: Draft) -> Published | NotStored:
        """Write an entry. Other processes see the whole entry or nothing of it."""

    def lock(
        self, name: str, *, wait: float | None, done: Callable[[], bool] | None = None
    ) -> AbstractContextManager[Locked | NotLocked]:
        """Hold the lock of a name (hex), waiting at most `wait` seconds or until `done()`.

        If `wait` is None, the limit follows from how long the last work under this lock took.
        """

    def quarantine(self, manifest: Manifest, reason: str) -> None:
        """Move an entry to quarantine, because its verified bytes could not be decoded."""

    def record_hit(self, manifest: Manifest) -> None:
        """Count a hit in memory. A timer calls `flush` some seconds later."""

    def read_record(self, entry: str) -> Plain:
        """The record of an entry (data that may change after the publish), or None."""

    def write_record(self, entry: str, data: Plain) -> str | None:
        """Replace the record of an entry; return why that failed, or None."""

    def flush(self) -> None:
        """Write the counted hits now, and mark the entries that were hit as recently used."""

    def listing(self) -> Iterator[Listed | Refused]:
        """Every entry, read from its manifest; `Refused` for a file that can't be read as one."""

    def prune(
        self,
        policy: PrunePolicy,
        *,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> PruneReport:
        """Evict entries by the policy; calls `progress(done, total)` after each one."""
