"""Compilation cache and artifact store for graph-mode inference.

Importing this package does not import torch; the first use of one of its names does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache.version import VERSION

if TYPE_CHECKING:
    from npugx_cache.api import CachedFunction, cache_compile
    from npugx_cache.capture_plan import Warmed
    from npugx_cache.entry.readable import readable_cache
    from npugx_cache.errors import (
        BackendUnavailable,
        CacheMiss,
        EntryNotFound,
        NpugxCacheError,
        OptionError,
        PassError,
        StoreError,
        Uncacheable,
        VerificationError,
    )
    from npugx_cache.events import CacheInfo, Refusal

__all__ = [
    "BackendUnavailable",
    "CacheInfo",
    "CacheMiss",
    "CachedFunction",
    "EntryNotFound",
    "NpugxCacheError",
    "OptionError",
    "PassError",
    "Refusal",
    "StoreError",
    "Uncacheable",
    "VerificationError",
    "Warmed",
    "__version__",
    "cache_compile",
    "readable_cache",
]
__version__ = VERSION

_HOME = {
    "CacheInfo": "npugx_cache.events",
    "CachedFunction": "npugx_cache.api",
    "Refusal": "npugx_cache.events",
    "Warmed": "npugx_cache.capture_plan",
    "cache_compile": "npugx_cache.api",
    "readable_cache": "npugx_cache.entry.readable",
}
_OTHERS = "npugx_cache.errors"


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOME.get(name, _OTHERS)), name)
    globals()[name] = value
    return value
