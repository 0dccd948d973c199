"""Bytes on disk: content-addressed blobs and the manifests naming them. Knows nothing of torch."""

from npugx_cache.store.manifest import BlobRef, Draft, Factors, Manifest, Plain
from npugx_cache.store.results import (
    Candidates,
    Listed,
    Locked,
    Miss,
    NotLocked,
    NotStored,
    PrunePolicy,
    PruneReport,
    Published,
    Refused,
    Unusable,
)
from npugx_cache.store.store import Store, open_store

__all__ = [
    "BlobRef",
    "Candidates",
    "Draft",
    "Factors",
    "Listed",
    "Locked",
    "Manifest",
    "Miss",
    "NotLocked",
    "NotStored",
    "Plain",
    "PrunePolicy",
    "PruneReport",
    "Published",
    "Refused",
    "Store",
    "Unusable",
    "open_store",
]
