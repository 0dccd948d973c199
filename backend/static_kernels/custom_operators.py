"""Hashes the custom operators that are installed in CANN, because kernels depend on their code."""

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
    """A digest of all custom operators; equal wherever the same operators are installed.

    Computed once, because the operators can't change in the life of a process.
    """
    whole = hashlib.sha256()
    for folder in config.custom_operator_folders():
        whole.update(b"folder\0")
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                whole.update(f"{path.relative_to(folder)}\0".encode() + _content(path))
    return whole.hexdigest()


def _content(path: Path) -> bytes:
    """The size of a file, and the hash of its bytes unless the file is large (a binary)."""
    size = path.stat().st_size
    text = hashlib.sha256(path.read_bytes()).digest() if size <= _READ_WHOLE else b""
    return size.to_bytes(8, "little") + text
