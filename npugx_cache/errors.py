"""The exceptions that users meet. Expected failures are values with a reason, not exceptions."""

from __future__ import annotations


class NpugxCacheError(Exception):
    """The base class of the exceptions of this package."""


class OptionError(NpugxCacheError, ValueError):
    """An argument or option has a value outside its valid range; raised at decoration time."""


class BackendUnavailable(NpugxCacheError, RuntimeError):
    """The backend or an option of it can't work here: missing device, package or version."""


class PassError(NpugxCacheError, RuntimeError):
    """A custom pass or replacement of the user failed, or left a graph that can't run."""


class Uncacheable(NpugxCacheError, RuntimeError):
    """A function can't be stored. Raised to the caller only under `strict=True`."""

    def __init__(self, function: str, reason: str) -> None:
        super().__init__(
            f"{function} can't be cached: {reason}. Without strict=True it would run uncached."
        )
        self.function = function
        self.reason = reason


class CacheMiss(NpugxCacheError, LookupError):
    """No stored graph fits a call, in a worker that must not compile (`NPUGX_CACHE_ON_MISS=raise`).

    `reasons` says how the most similar entry does not fit. Raised to the caller also without
    `strict`, because the user asked for it.
    """

    def __init__(self, function: str, reasons: tuple[str, ...]) -> None:
        super().__init__(
            f"{function}: no stored graph fits this call: {'; '.join(reasons)}. "
            "NPUGX_CACHE_ON_MISS=raise forbids a compile here: let a worker without it fill the "
            "cache with such a call, or set NPUGX_CACHE_ON_MISS to eager or compile"
        )
        self.function = function
        self.reasons = reasons


class OutdatedGraph(NpugxCacheError, RuntimeError):
    """A graph that `aot_compile` saved does not fit this process: save it anew here."""

    def __init__(self, graph: str, reason: str) -> None:
        super().__init__(
            f"the saved graph ({graph}) does not fit this process: {reason}. Call aot_compile again"
        )
        self.reason = reason


class StoreError(NpugxCacheError, OSError):
    """A fault of the cache folder. Raised to the caller only under `strict=True`."""


class VerificationError(NpugxCacheError, AssertionError):
    """A restored graph differs from the same graph compiled again (`NPUGX_CACHE_VERIFY=recompile`).

    `restored` and `recompiled` are the two readable texts, or the two values that differ. Raised to
    the caller also without `strict`, because the user asked for the comparison.
    """

    def __init__(self, function: str, what: str, restored: object, recompiled: object) -> None:
        super().__init__(f"{function}: restored and recompiled are not the same: {what}")
        self.function = function
        self.restored = restored
        self.recompiled = recompiled


class EntryNotFound(NpugxCacheError, LookupError):
    """No entry of the store has the given id, prefix or path."""


class CorruptEntry(NpugxCacheError, ValueError):
    """Stored bytes match their digest and still can't be decoded: their writer had a fault."""
