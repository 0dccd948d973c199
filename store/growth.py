"""Estimates how large a store is, for all processes that publish into it.

The estimate is a file of records (bytes, entries). The first record is the time of the last full
look, the second what that look found, and each publish appends one record. If each process counted
its own entries only, N processes could exceed a limit N times. When the file is missing, odd or
old, somebody takes a full look.
"""

from __future__ import annotations

import contextlib
import time
from array import array
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.store import syscalls
from npugx_cache.store.files import Fault, is_writable_in_place, read_file, write_file

if TYPE_CHECKING:
    from npugx_cache.store.layout import Folder

_NAME = "size"
_RECORD = 16
_MAX_BYTES = 1 << 20
_OLD = 600.0


class Total(NamedTuple):
    size: int
    entries: int


def grown(folder: Folder, size: int, entries: int) -> Total | None:
    """Add what was published and return the total, or None where nobody knows it."""
    with contextlib.suppress(OSError):
        fd = folder.tree.open_append(folder.part(_NAME))
        try:
            # Not into a FIFO, nor through a hard link into another file of the user's.
            if is_writable_in_place(folder, fd):
                syscalls.write_all(fd, array("q", [size, entries]).tobytes())
        finally:
            syscalls.close(fd)
    return total(folder)


def total(folder: Folder) -> Total | None:
    found = read_file(folder, folder.part(_NAME), limit=_MAX_BYTES)
    if isinstance(found, Fault) or len(found.data) % _RECORD or not found.data:
        return None
    numbers = array("q", found.data)
    if not 0 <= time.time() - numbers[0] < _OLD:
        return None
    return Total(sum(numbers[2::2]), sum(numbers[3::2]))


def looked(folder: Folder, found: Total, before: Total | None) -> None:
    """Note what a scan has found. `before` is the total when it began.

    What was published meanwhile may be in both: better counted twice than not at all.
    """
    now = total(folder)
    since = Total(0, 0)
    if before is not None and now is not None:
        since = Total(max(0, now.size - before.size), max(0, now.entries - before.entries))
    numbers = [int(time.time()), 0, found.size + since.size, found.entries + since.entries]
    with contextlib.suppress(OSError):
        data = array("q", numbers).tobytes()
        write_file(folder, folder.part(_NAME), data, durable=False)
