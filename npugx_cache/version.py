"""The versions of this package and of its entries, and those of torch and Python that it serves.

This module imports nothing.
"""

from __future__ import annotations

VERSION = "0.1.0"

FORMAT = "43"
"""Version of what an entry holds; raised whenever older entries must not be read any more."""

TESTED_TORCH = ((2, 10), (2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
"""The minor versions of torch that the cache works with; on others nothing is cached."""

TESTED_PYTHON = ((3, 11), (3, 12), (3, 13), (3, 14))
"""The minor versions of CPython that the cache works with; on others nothing is cached."""

OLDEST_TORCH = (2, 10)
"""The oldest version of torch that the backend runs on, without the cache."""


def unserved_torch(version: str, *, untested: bool = False) -> str | None:
    """Why nothing can be cached on a torch, or None. `version` is its `torch.__version__`.

    `untested`: whether the user wants the cache tried on a torch that it was not tested on.
    """
    if minor_version(version) in TESTED_TORCH:
        return None
    reason = f"torch {version} is not served: the cache works with torch {_words(TESTED_TORCH)}"
    if is_too_old(version):
        return reason
    tries = f"NPUGX_CACHE_UNTESTED_TORCH=1 tries it on any torch from {_words((OLDEST_TORCH,))} on"
    return None if untested else f"{reason} ({tries})"


def is_too_old(version: str) -> bool:
    """Whether the backend can't run on a torch either, so that graphs run as they were traced."""
    return minor_version(version) < OLDEST_TORCH


def is_between(version: str, since: tuple[int, int], before: tuple[int, int]) -> bool:
    """Whether a torch is of the minor version `since` or a later one, and older than `before`."""
    return since <= minor_version(version) < before


def unserved_python(name: str, version: tuple[int, ...], flags: str) -> str | None:
    """Why nothing can be cached on a Python of this implementation, version and ABI, or None.

    Python 3.13.0 does not report to torch's C++ guards that an attribute was set (gh-125608), so
    the guards would still accept a call after such a change.
    """
    if name != "cpython":
        return f"{name} is not supported: caller frames are CPython bytecode"
    what = ".".join(map(str, version[:3])) + flags
    if version[:2] not in TESTED_PYTHON or "t" in flags:  # t: without a global lock
        served = _words(TESTED_PYTHON)
        return f"Python {what} is not served: the cache works with Python {served}"
    if version[:3] == (3, 13, 0):
        return f"Python {what} is not served, because of its bug gh-125608: 3.13.1 is"
    return None


def minor_version(version: str) -> tuple[int, int]:
    """(2, 13) of "2.13.0+cpu"; (0, 0) of what is no version."""
    major, minor = (*version.split("."), "")[:2]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)


def _words(versions: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"{major}.{minor}" for major, minor in versions)
