"""One file: read and judged by its open descriptor; written whole or not at all."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npugx_cache.store import syscalls
from npugx_cache.store.layout import is_quarantined, listdir, make_parents, stamp_shard
from npugx_cache.store.trust import distrust

if TYPE_CHECKING:
    import os

    from npugx_cache.store.layout import Folder

_MAX_QUARANTINED = 64
_MAX_REASON = 500
_MOVES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    data: bytes
    status: os.stat_result


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a file was not read. `status` is there when the file was opened."""

    reason: str
    status: os.stat_result | None = None
    absent: bool = False
    wrong_size: bool = False


def read_file(
    folder: Folder, path: str, *, limit: int, size: int | None = None, dir_fd: int | None = None
) -> Contents | Fault:
    """Read a whole file that is trusted, regular and of the expected size (`size`, `limit`).

    With `dir_fd` only the last part of `path` is opened, inside that folder.
    """
    try:
        name = path if dir_fd is None else path.rpartition("/")[2]
        fd = syscalls.open_read(name, dir_fd=dir_fd)
    except OSError as error:
        # ENOENT, ESTALE, ELOOP, EACCES, EIO ...: whatever it is, the worker must go on.
        return Fault(
            reason=folder.explain(error, path), absent=isinstance(error, FileNotFoundError)
        )
    try:
        return _read_open(folder, fd, path, limit, size)
    except OSError as error:
        return Fault(reason=folder.explain(error, path))
    finally:
        syscalls.close(fd)


def _read_open(
    folder: Folder, fd: int, path: str, limit: int, size: int | None
) -> Contents | Fault:
    status = syscalls.fstat(fd)
    where = folder.relative(path)
    if not syscalls.is_regular(status):
        return Fault(reason=f"{where} is not a regular file")
    fault = distrust(status, folder.trust)
    if fault is not None:
        return Fault(reason=f"{where} is not trusted: {fault}")
    if status.st_size > limit or (size is not None and status.st_size != size):
        expected = f"at most {limit}" if size is None else str(size)
        return Fault(
            reason=f"{where} has {status.st_size} bytes instead of {expected}",
            status=status,
            wrong_size=True,
        )
    data = syscalls.read_all(fd, status.st_size)
    if len(data) != status.st_size:
        return Fault(reason=f"{where} got shorter while it was read", status=status)
    return Contents(data=data, status=status)


def write_file(folder: Folder, path: str, data: bytes, *, durable: bool) -> None:
    """Put a file in its place atomically; raises OSError and leaves no temporary behind.

    `durable`: the contents survive a power cut. Without fsync a renamed file comes back
    zero-length; the name itself needs `syscalls.fsync_folder` as well.
    """
    temporary = folder.temporary()
    fd = syscalls.open_new(temporary, folder.file_mode)
    try:
        try:
            syscalls.write_all(fd, data)
            if durable:
                syscalls.fsync(fd)
        finally:
            syscalls.close(fd)
        _move(folder, temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            syscalls.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = path  # write and fsync know a descriptor only
        raise


def _move(folder: Folder, temporary: str, path: str) -> None:
    for _ in range(_MOVES):
        try:
            syscalls.rename(temporary, path)
        except FileNotFoundError:
            # A cleaner has removed the folder while it was empty, and may do so again before
            # our file is in it (seen once in 2,000 publishes beside a cleaner that never rests).
            make_parents(folder, path)
        else:
            return
    syscalls.rename(temporary, path)


def quarantine(folder: Folder, path: str, reason: str, status: os.stat_result | None) -> None:
    """Move a bad file away, so that the next publish heals its place. Best effort.

    `status` is the file as it was read: where another writer has put a good one in its place
    since, that one stays.
    """
    if folder.readonly is not None:
        return
    name = f"{path.rpartition('/')[2]}.{syscalls.random_name()[:16]}"
    target = f"{folder.part('quarantine')}/{name}"
    with contextlib.suppress(OSError):
        now = syscalls.lstat(path)
        if status is not None and (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino):
            return
        make_parents(folder, target)
        syscalls.rename(path, target)
        place = folder.relative(path).split("/")
        if place[1:2] == ["ac"]:
            stamp_shard(folder, place[2])
        fd = syscalls.open_new(f"{target}.reason", folder.file_mode)
        try:
            note = f"{folder.relative(path)}: {reason}"[:_MAX_REASON]
            syscalls.write_all(fd, note.encode("utf-8", "replace") + b"\n")
        finally:
            syscalls.close(fd)
    _cap_quarantine(folder)


def _cap_quarantine(folder: Folder) -> None:
    root = folder.part("quarantine")
    names = [name for name in listdir(root) if is_quarantined(name)]
    excess = len(names) - 2 * _MAX_QUARANTINED
    if excess <= 0:
        return
    aged: list[tuple[float, str]] = []
    for name in names:
        with contextlib.suppress(OSError):
            aged.append((syscalls.lstat(f"{root}/{name}").st_mtime, name))
    for _, name in sorted(aged)[:excess]:
        with contextlib.suppress(OSError):
            syscalls.unlink(f"{root}/{name}")
