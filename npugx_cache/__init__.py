"""Compilation cache and artifact store for graph-mode inference.

Importing this package does not import torch; the first use of one of its names does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache.version import VERSION

if TYPE_CHECKING:
    from npugx_cache.api import CachedFunction, cache_compile
    from npugx_cache.counters import CacheInfo, Metrics, Warmed, metrics
    from npugx_cache.counters.prometheus import PrometheusCollector, prometheus_text
    from npugx_cache.entry.readable import readable_cache
    from npugx_cache.errors import (
        BackendUnavailable,
        CacheMiss,
        EntryNotFound,
        NpugxCacheError,
        OptionError,
        OutdatedGraph,
        PassError,
        StoreError,
        Uncacheable,
        VerificationError,
    )
    from npugx_cache.events import Refusal
    from npugx_cache.pieces.cached_graph import CachedGraph
    from npugx_cache.pieces.compiled import cached_graph
    from npugx_cache.pieces.loaded import load_graph

__all__ = [
    "BackendUnavailable",
    "CacheInfo",
    "CacheMiss",
    "CachedFunction",
    "CachedGraph",
    "EntryNotFound",
    "Metrics",
    "NpugxCacheError",
    "OptionError",
    "OutdatedGraph",
    "PassError",
    "PrometheusCollector",
    "Refusal",
    "StoreError",
    "Uncacheable",
    "VerificationError",
    "Warmed",
    "__version__",
    "cache_compile",
    "cached_graph",
    "load_graph",
    "metrics",
    "prometheus_text",
    "readable_cache",
]
__version__ = VERSION

_HOME = {
    "CacheInfo": "npugx_cache.counters",
    "CachedFunction": "npugx_cache.api",
    "CachedGraph": "npugx_cache.pieces.cached_graph",
    "Metrics": "npugx_cache.counters",
    "PrometheusCollector": "npugx_cache.counters.prometheus",
    "Refusal": "npugx_cache.events",
    "Warmed": "npugx_cache.counters",
    "cache_compile": "npugx_cache.api",
    "cached_graph": "npugx_cache.pieces.compiled",
    "load_graph": "npugx_cache.pieces.loaded",
    "metrics": "npugx_cache.counters",
    "prometheus_text": "npugx_cache.counters.prometheus",
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
