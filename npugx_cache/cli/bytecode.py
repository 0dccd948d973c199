"""Whether Python has the bytecode of this package, or compiles the sources at each start."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from npugx_cache.store.tools.doctor import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER = 16
_HASHED, _CHECKED = 1, 2
"""Flags of PEP 552: the header has a hash of the source, which Python compares."""


def examine_bytecode(package: Path) -> Finding:
    """Count the sources in a folder whose bytecode Python has not, and can't keep.

    So it is in an image that was built with PYTHONDONTWRITEBYTECODE, or whose files got other times
    later, and that a worker may not write to.
    """
    sources = list(_sources(package))
    lost = [source for source in sources if not _has_bytecode(source) and not _can_write(source)]
    if not lost:
        return Finding(name="bytecode", verdict="ok", detail="Python has it, or keeps it")
    # compileall does not follow links, as those of a checkout.
    folders = " ".join(map(str, (package, *filter(Path.is_symlink, package.iterdir()))))
    detail = (
        f"Python compiles {len(lost)} of {len(sources)} files of {package} at each start that "
        f"needs them, and keeps no bytecode; run `{sys.executable} -m compileall {folders}` where "
        "the environment is made"
    )
    return Finding(name="bytecode", verdict="warning", detail=detail)


def _sources(package: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(package, followlinks=True):
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _has_bytecode(source: Path) -> bool:
    """Whether Python takes the file of bytecode for that of the source, as PEP 552 says."""
    try:
        with Path(importlib.util.cache_from_source(source)).open("rb") as file:
            header = file.read(_HEADER)
        written = source.stat()
    except OSError:
        return False
    flags, time, size = (int.from_bytes(header[at : at + 4], "little") for at in (4, 8, 12))
    if header[:4] != importlib.util.MAGIC_NUMBER:
        return False
    if flags & _CHECKED:
        return header[8:] == importlib.util.source_hash(source.read_bytes())
    if flags & _HASHED:
        return True
    return (time, size) == (int(written.st_mtime) & 0xFFFFFFFF, written.st_size & 0xFFFFFFFF)


def _can_write(source: Path) -> bool:
    """Whether Python writes the bytecode of a source when it compiles the source."""
    folder = Path(importlib.util.cache_from_source(source)).parent
    # `os.path.exists` says False of a folder inside one that this user may not enter.
    there = next(each for each in (folder, *folder.parents) if os.path.exists(each))  # noqa: PTH110
    return not sys.dont_write_bytecode and os.access(there, os.W_OK)
