"""Compilation cache and artifact store for graph-mode inference.

Importing this package does not import torch; the first use of one of its names does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache.version import VERSION

if TYPE_CHECKING:
    from npugx_cache.api import CachedFunction, cache_compile
    from npugx_cache.entry.readable import readable_cache
    from npugx_cache.events import CacheInfo

__all__ = ["CacheInfo", "CachedFunction", "__version__", "cache_compile", "readable_cache"]
__version__ = VERSION

_HOME = {
    "CacheInfo": "npugx_cache.events",
    "CachedFunction": "npugx_cache.api",
    "cache_compile": "npugx_cache.api",
    "readable_cache": "npugx_cache.entry.readable",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
