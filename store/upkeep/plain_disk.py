"""A diskcache `Disk` that never pickles (CVE-2025-69872: whoever writes the folder runs code).

Only this module imports diskcache at its top; it is itself imported only where it is used.
"""

from __future__ import annotations

from typing import Any, cast

import diskcache
from diskcache.core import MODE_RAW, UNKNOWN

from npugx_cache.store.format.plain import pack, unpack

MAX_VALUE = 1 << 26


def _is_native(value: object) -> bool:
    """Tell whether SQLite holds a value of this type as it is."""
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 63
    return type(value) in (str, float, bytes)


class PlainDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Keys are str, int, float or bytes; values int or float, or else msgpack bytes.

    All values lie in the database itself, because a row that names a file could name any file.
    """

    def put(self, key: Any) -> tuple[Any, bool]:
        if not _is_native(key):
            raise TypeError(f"a key of type {type(key).__name__} would be pickled")
        return cast("tuple[Any, bool]", super().put(key))

    def get(self, key: Any, raw: bool) -> Any:
        if not raw:
            raise TypeError("refused a pickled key")
        return super().get(key, raw)

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> tuple[int, int, None, Any]:
        if read:
            raise TypeError("values from files are not stored")
        number = type(value) in (int, float) and _is_native(value)
        plain = value if number else pack(value)
        if not number and len(plain) >= self.min_file_size:
            raise TypeError("this value is too large for the database")
        return cast("tuple[int, int, None, Any]", super().store(plain, read, key))

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        if mode != MODE_RAW or filename is not None or read:
            raise TypeError("refused a value that is not plain")
        found = super().fetch(mode, filename, value, read)
        if not isinstance(found, bytes):
            return found
        return unpack(found)

    def remove(self, file_path: str) -> None:
        """Delete nothing: our rows name no file, and a row that does could name any file."""


class PlainCache(diskcache.Cache):  # type: ignore[misc]  # diskcache has no types
    """Leaves no connection open if opening fails, because Python 3.13 warns of an open one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().__init__(*args, **kwargs)
        except BaseException:
            if "_local" in vars(self):
                self.close()
            raise
