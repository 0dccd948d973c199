"""The exceptions that users meet. Expected failures are values with a reason, not exceptions."""

from __future__ import annotations


class NpugxCacheError(Exception):
    """Base of everything the package raises on its own account."""


class OptionError(NpugxCacheError, ValueError):
    """An argument or option has a value outside its valid range; raised at decoration time."""


class BackendUnavailable(NpugxCacheError, RuntimeError):
    """The backend or an option of it can't work here: missing device, package or version."""


class PassError(NpugxCacheError, RuntimeError):
    """A custom pass or replacement of the user's failed, or left a graph that can't run."""


class Uncacheable(NpugxCacheError, RuntimeError):
    """A function can't be stored. Raised to the caller only under `strict=True`."""

    def __init__(self, function: str, reason: str) -> None:
        super().__init__(
            f"{function} can't be cached: {reason}. Without strict=True it would run uncached."
        )
        self.function = function
        self.reason = reason


class StoreError(NpugxCacheError, OSError):
    """A fault of the cache folder. Raised to the caller only under `strict=True`."""


class VerificationError(NpugxCacheError, AssertionError):
    """A restored graph and the same one compiled anew differ: `NPUGX_CACHE_VERIFY=recompile`.

    `restored` and `recompiled` are the two readable texts, or the two values that differ. Raised to
    the caller, strict or not: it was asked for.
    """

    def __init__(self, function: str, what: str, restored: object, recompiled: object) -> None:
        super().__init__(f"{function}: restored and recompiled are not the same: {what}")
        self.function = function
        self.restored = restored
        self.recompiled = recompiled


class EntryNotFound(NpugxCacheError, LookupError):
    """No entry of the store goes by the given id, prefix or path."""


class CorruptEntry(NpugxCacheError, ValueError):
    """Stored bytes passed their digest and still do not decode: written by a faulty producer."""
