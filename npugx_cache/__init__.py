"""Compilation cache and artifact store for graph-mode inference.

Importing this package does not import torch; the first use of one of its names does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache.version import VERSION

if TYPE_CHECKING:
    from npugx_cache.api import CachedFunction as CachedFunction
    from npugx_cache.api import cache_compile as cache_compile
    from npugx_cache.capture_plan import Warmed as Warmed
    from npugx_cache.entry.readable import readable_cache as readable_cache
    from npugx_cache.errors import BackendUnavailable as BackendUnavailable
    from npugx_cache.errors import EntryNotFound as EntryNotFound
    from npugx_cache.errors import NpugxCacheError as NpugxCacheError
    from npugx_cache.errors import OptionError as OptionError
    from npugx_cache.errors import PassError as PassError
    from npugx_cache.errors import StoreError as StoreError
    from npugx_cache.errors import Uncacheable as Uncacheable
    from npugx_cache.errors import VerificationError as VerificationError
    from npugx_cache.events import CacheInfo as CacheInfo
    from npugx_cache.events import Refusal as Refusal

__version__ = VERSION

_HOMES = {
    "api": ("CachedFunction", "cache_compile"),
    "capture_plan": ("Warmed",),
    "entry.readable": ("readable_cache",),
    "errors": (
        "BackendUnavailable",
        "EntryNotFound",
        "NpugxCacheError",
        "OptionError",
        "PassError",
        "StoreError",
        "Uncacheable",
        "VerificationError",
    ),
    "events": ("CacheInfo", "Refusal"),
}
_HOME = {name: f"npugx_cache.{module}" for module, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
