"""Store: what a caller needs of one, be it a folder or several in layers."""

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
    """Verified entries by key. Its faults are answers; none of them raises OSError.

    Thread-safe, and safe to use in a forked child. Make one with `open_store`.
    """

    @property
    def root(self) -> Path:
        """The folder that new entries go to."""

    @property
    def readonly(self) -> str | None:
        """Why nothing is ever written here, or None."""

    def candidates(self, key: str) -> Candidates:
        """The entries under a key, most recently used first, with the notes of bypasses."""

    def siblings(self, identity: str, *, limit: int = 64) -> tuple[Manifest, ...]:
        """The entries of one function under any key, newest first."""

    def find(self, prefix: str) -> Manifest | Miss:
        """The entry whose id starts with `prefix`, where that is exactly one."""

    def read(self, manifest: Manifest, names: Iterable[str]) -> Mapping[str, bytes] | Miss:
        """The logical bytes of these blobs, all verified, or a miss."""

    def publish(self, draft: Draft) -> Published | NotStored:
        """Write an entry; others see it whole or not at all."""

    def lock(
        self, name: str, *, wait: float | None, done: Callable[[], bool] | None = None
    ) -> AbstractContextManager[Locked | NotLocked]:
        """Hold the lock of a name (hex), waiting at most `wait` seconds or until `done()`.

        Without `wait` the bound is what the work under this lock took the last time.
        """

    def quarantine(self, manifest: Manifest, reason: str) -> None:
        """Move away an entry whose verified bytes turned out not to decode."""

    def record_hit(self, manifest: Manifest) -> None:
        """Count a hit in memory; `flush` does the writing, by itself soon after."""

    def read_record(self, entry: str) -> Plain:
        """What was last recorded about an entry after it was published, or None."""

    def write_record(self, entry: str, data: Plain) -> str | None:
        """Replace what is recorded about an entry; say why that failed, or None."""

    def flush(self) -> None:
        """Write the counters and freshen the entries hit, at once."""

    def listing(self) -> Iterator[Listed | Refused]:
        """Every entry, read from its manifest."""

    def prune(
        self,
        policy: PrunePolicy,
        *,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> PruneReport:
        """Evict what the policy says; `progress(done, total)` is called per entry."""
