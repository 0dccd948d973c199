"""Keeps entries on disk: content-addressed blobs, and manifests that name them. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npugx_cache.store.access import Access
    from npugx_cache.store.content.lock import Locked, NotLocked
    from npugx_cache.store.folder_store import FolderStore, open_folder
    from npugx_cache.store.format.manifest import Draft, Manifest
    from npugx_cache.store.results import (
        REMOVED,
        Candidates,
        Fetched,
        Listed,
        Miss,
        NotStored,
        PrunePolicy,
        Published,
        Refused,
        Unusable,
    )
    from npugx_cache.store.tiers import Store, open_store
    from npugx_cache.store.upkeep.journal import NOT_STORED, Journal, JournalLine, journal_of
    from npugx_cache.store.upkeep.prune import PruneReport

__all__ = [
    "NOT_STORED",
    "REMOVED",
    "Access",
    "Candidates",
    "Draft",
    "Fetched",
    "FolderStore",
    "Journal",
    "JournalLine",
    "Listed",
    "Locked",
    "Manifest",
    "Miss",
    "NotLocked",
    "NotStored",
    "PrunePolicy",
    "PruneReport",
    "Published",
    "Refused",
    "Store",
    "Unusable",
    "journal_of",
    "open_folder",
    "open_store",
    "preload",
]

# Imported on first use, because a hit needs neither locks nor eviction, and `npugx-cache ls` must
# start within milliseconds.
_HOMES = {
    "access": ("Access",),
    "folder_store": ("FolderStore", "open_folder"),
    "content.lock": ("Locked", "NotLocked"),
    "format.manifest": ("Draft", "Manifest"),
    "upkeep.journal": ("NOT_STORED", "Journal", "JournalLine", "journal_of"),
    "upkeep.prune": ("PruneReport",),
    "results": (
        "REMOVED",
        "Candidates",
        "Fetched",
        "Listed",
        "Miss",
        "NotStored",
        "PrunePolicy",
        "Published",
        "Refused",
        "Unusable",
    ),
    "tiers": ("Store", "open_store"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def preload() -> None:
    """Import the modules that a hit needs, so that no call waits for the imports."""
    from npugx_cache.store import access  # noqa: F401
    from npugx_cache.store.content import blobs  # noqa: F401
