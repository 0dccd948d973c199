"""Reads and writes one file: judged by its open descriptor, and written whole or not at all."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.store.content.verified import stamp
from npugx_cache.store.format.layout import is_quarantined, listdir, make_parents, stamp_shard
from npugx_cache.store.io import syscalls
from npugx_cache.store.io.trust import distrust

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from npugx_cache.store.content.verified import Refusal, Stamp
    from npugx_cache.store.format.layout import Folder

_MAX_QUARANTINED = 64
_MAX_REASON = 500
_MOVES = 8


class Contents(NamedTuple):
    """`verified`: these very bytes have been verified before."""

    data: bytes
    status: os.stat_result
    verified: bool = False


class Fault(NamedTuple):
    """Why a file was not read. `status` is there when the file was opened.

    `known`: it is as it was when it was refused before.
    """

    reason: str
    status: os.stat_result | None = None
    absent: bool = False
    wrong_size: bool = False
    known: bool = False


def read_file(
    folder: Folder,
    path: str,
    *,
    limit: int,
    size: int | None = None,
    known: Stamp | None = None,
    refused: Refusal | None = None,
    at: int | None = None,
) -> Contents | Fault:
    """Read a whole file that is trusted, regular and of the expected size (`size`, `limit`).

    `known` is the stamp that the file had when it was verified before, `refused` what was found
    when it was refused. `at` is the folder that it lies in, where that is open.
    """
    try:
        if at is None:
            fd = folder.tree.open_read(path)
        else:
            fd = syscalls.open_read(path.rpartition("/")[2], at)
    except OSError as error:
        error.filename = path
        # ENOENT, ESTALE, ELOOP, EACCES, EIO ...: whatever it is, the worker must go on.
        return Fault(
            reason=folder.explain(error, path), absent=isinstance(error, FileNotFoundError)
        )
    try:
        return _read_open(folder, fd, path, limit, size, known, refused)
    except OSError as error:
        return Fault(reason=folder.explain(error, path))
    finally:
        syscalls.close(fd)


def _read_open(
    folder: Folder,
    fd: int,
    path: str,
    limit: int,
    size: int | None,
    known: Stamp | None,
    refused: Refusal | None,
) -> Contents | Fault:
    status = syscalls.fstat(fd)
    length = status.st_size
    fault = distrust(status, folder.trust, folder.group)
    if not syscalls.is_regular(status):
        return Fault(reason=f"{folder.relative(path)} is not a regular file")
    if fault is not None:
        return Fault(reason=f"{folder.relative(path)} is not trusted: {fault}")
    if length > limit or (size is not None and length != size):
        expected = f"at most {limit}" if size is None else str(size)
        return Fault(
            reason=f"{folder.relative(path)} has {length} bytes instead of {expected}",
            status=status,
            wrong_size=True,
        )
    if refused is not None and refused.seen == stamp(status):
        return Fault(reason=refused.reason, status=status, known=True)
    data = syscalls.read_all(fd, length)
    if len(data) != length:
        return Fault(reason=f"{folder.relative(path)} got shorter while it was read", status=status)
    # Looked at after reading as well: it may have been changed in between.
    verified = known is not None and known == stamp(status) == stamp(syscalls.fstat(fd))
    return Contents(data, status, verified)


def is_writable_in_place(folder: Folder, fd: int) -> bool:
    """Tell whether an open file is one of the store's alone: regular, trusted, of one name."""
    status = syscalls.fstat(fd)
    return (
        syscalls.is_regular(status)
        and status.st_nlink == 1
        and distrust(status, folder.trust, folder.group) is None
    )


def write_file(folder: Folder, path: str, data: bytes, *, durable: bool) -> set[str]:
    """Put a file in its place atomically; raises OSError and leaves no temporary behind.

    `durable`: the contents survive a power cut. Without fsync a renamed file comes back
    zero-length. Its name survives once the folders that are returned are synced as well.
    """
    return move(folder, stage(folder, path, data, durable=durable), path)


def stage(folder: Folder, path: str, data: bytes, *, durable: bool) -> str:
    """Write a temporary file for the place `path` and return its name; `move` finishes it."""
    temporary = folder.temporary()
    with unlinked_on_error(folder, temporary, path):
        try:
            fd = folder.open_new(temporary)
        except FileNotFoundError:
            make_parents(folder, temporary)
            fd = folder.open_new(temporary)
        try:
            syscalls.write_all(fd, data)
            if durable:
                syscalls.fsync(fd)
        finally:
            syscalls.close(fd)
    return temporary


def move(folder: Folder, temporary: str, path: str) -> set[str]:
    """Put a temporary file in its place; return the folders that have new names in them."""
    changed = {path.rpartition("/")[0]}
    with unlinked_on_error(folder, temporary, path):
        for _ in range(_MOVES):
            try:
                folder.tree.rename(temporary, path)
            except FileNotFoundError:
                # Missing, or a cleaner has removed the folder while it was empty, and may do so
                # again before our file is in it (seen once in 2,000 publishes beside a cleaner
                # that never rests).
                changed.update(make_parents(folder, path))
            else:
                return changed
        folder.tree.rename(temporary, path)
    return changed


@contextlib.contextmanager
def unlinked_on_error(folder: Folder, temporary: str, path: str) -> Iterator[None]:
    """Remove a temporary file for the place `path` where what follows fails."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):
            folder.tree.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = path  # write and fsync know a descriptor only
        raise


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
        make_parents(folder, target)
        with folder.tree.place(path) as (at, bad), folder.tree.place(target) as (to, _):
            now = syscalls.lstat(bad, at)
            if status is not None and (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino):
                return
            syscalls.rename(bad, name, at, to)
        place = path.split("/")
        if place[1:2] == ["ac"]:
            stamp_shard(folder, place[2])
        fd = folder.open_new(f"{target}.reason")
        try:
            note = f"{path}: {reason}"[:_MAX_REASON]
            syscalls.write_all(fd, note.encode("utf-8", "replace") + b"\n")
        finally:
            syscalls.close(fd)
    _cap_quarantine(folder)


def _cap_quarantine(folder: Folder) -> None:
    root = folder.part("quarantine")
    names = [name for name in listdir(folder, root) if is_quarantined(name)]
    excess = len(names) - 2 * _MAX_QUARANTINED
    if excess <= 0:
        return
    aged: list[tuple[float, str]] = []
    with contextlib.suppress(OSError), folder.tree.place(f"{root}/") as (at, _):
        for name in names:
            with contextlib.suppress(OSError):
                aged.append((syscalls.lstat(name, at).st_mtime, name))
        for _, name in sorted(aged)[:excess]:
            with contextlib.suppress(OSError):
                syscalls.unlink(name, at)
