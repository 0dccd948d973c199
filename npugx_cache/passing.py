"""Says of each reason why something can't be done whether the reason may pass: one table.

What may pass must not be remembered as lasting: after a burst of open files, a store would stay
unused for the rest of a worker's life, or a function would count as one that can't be traced.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Literal

from npugx_cache.interpreter.interruptions import chain

if TYPE_CHECKING:
    from collections.abc import Mapping

Reason = Literal["off", "settings", "no home", "untrusted", "not a folder", "read-only", "missing"]
"""A reason that is no error of the system, by a word."""

SOON = 0.0
"""A state of the machine that passes by itself."""
WHEN_MENDED = 10.0
"""A state that lasts until somebody acts, who changes a mode or mounts a folder."""
NEVER = float("inf")
"""What follows from the settings of a process lasts as long as the process."""

PAUSES: Mapping[Reason | int, float] = {
    "off": NEVER,
    "settings": NEVER,
    "no home": NEVER,
    "untrusted": WHEN_MENDED,
    "not a folder": WHEN_MENDED,
    "read-only": WHEN_MENDED,
    "missing": WHEN_MENDED,
    errno.EACCES: WHEN_MENDED,
    errno.EEXIST: WHEN_MENDED,
    errno.EINVAL: WHEN_MENDED,
    errno.EISDIR: WHEN_MENDED,
    errno.ELOOP: WHEN_MENDED,
    errno.ENAMETOOLONG: WHEN_MENDED,
    errno.ENOENT: WHEN_MENDED,
    errno.ENOSYS: WHEN_MENDED,
    errno.ENOTDIR: WHEN_MENDED,
    errno.ENOTSUP: WHEN_MENDED,
    errno.EPERM: WHEN_MENDED,
    errno.EROFS: WHEN_MENDED,
    errno.EAGAIN: SOON,
    errno.EBUSY: SOON,
    errno.EDQUOT: SOON,
    errno.EHOSTDOWN: SOON,
    errno.EHOSTUNREACH: SOON,
    errno.EINTR: SOON,
    errno.EIO: SOON,
    errno.EMFILE: SOON,
    errno.ENETUNREACH: SOON,
    errno.ENFILE: SOON,
    errno.ENOBUFS: SOON,
    errno.ENODEV: SOON,
    errno.ENOMEM: SOON,
    errno.ENOSPC: SOON,
    errno.ENOTCONN: SOON,
    errno.ENXIO: SOON,
    errno.EREMOTEIO: SOON,
    errno.ESHUTDOWN: SOON,
    errno.ESTALE: SOON,
    errno.ETIMEDOUT: SOON,
}
"""After how many seconds it makes sense to ask again. Keys are words and error numbers."""


def pause_after(reason: Reason | int | None) -> float:
    """After how many seconds it makes sense to ask again; an unknown error may pass."""
    return WHEN_MENDED if reason is None else PAUSES.get(reason, WHEN_MENDED)


def is_passing(error: BaseException) -> bool:
    """Whether an exception comes from a state of the machine that passes by itself.

    An import of a library that can't be opened now raises an ImportError with the system's text.
    """
    for each in chain(error):
        if isinstance(each, OSError) and pause_after(each.errno) == SOON:
            return True
        if isinstance(each, ImportError) and any(text in str(each) for text in _texts()):
            return True
    return False


def _texts() -> list[str]:
    numbers = (number for number, pause in PAUSES.items() if pause == SOON)
    return [os.strerror(number) for number in numbers if isinstance(number, int)]
