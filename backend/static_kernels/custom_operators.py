"""Operators that were added to CANN's own: kernels are compiled from their sources."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING

from npugx_cache import config

if TYPE_CHECKING:
    from pathlib import Path

_READ_WHOLE = 1 << 20


@functools.cache
def digest() -> str:
    """The same wherever the same operators are installed; they can't change in a process's life."""
    whole = hashlib.sha256()
    for folder in config.custom_operator_folders():
        whole.update(b"folder\0")
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                whole.update(f"{path.relative_to(folder)}\0".encode() + _content(path))
    return whole.hexdigest()


def _content(path: Path) -> bytes:
    """Sources and descriptions by what is in them, large binaries by their size."""
    size = path.stat().st_size
    text = hashlib.sha256(path.read_bytes()).digest() if size <= _READ_WHOLE else b""
    return size.to_bytes(8, "little") + text
