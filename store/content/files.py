"""Reads files after checking their open descriptors, and writes files whole or not at all."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from npugx_cache.records import NamedTuple
from npugx_cache.store.content.verified import stamp
from npugx_cache.store.format.layout import is_quarantined, listdir, make_parents, stamp_shard
from npugx_cache.store.io import syscalls
from npugx_cache.store.io.trust import distrust

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

    from npugx_cache.store.content.verified import Refusal, Stamp
    from npugx_cache.store.format.layout import Folder

_MAX_QUARANTINED = 64
_MAX_REASON = 500
_MOVES = 8


class Contents(NamedTuple):
    """The bytes of a file. `verified`: the digest of the same bytes was verified before."""

    data: bytes
    status: os.stat_result
    verified: bool = False


class Fault(NamedTuple):
    """Why a file was not read. `status` is given if the fault is in the size or the contents."""

    reason: str
    status: os.stat_result | None = None
    absent: bool = False
    wrong_size: bool = False


def read_file(
    folder: Folder,
    path: str,
    *,
    limit: int,
    size: int | None = None,
    known: Stamp | None = None,
    refused: Refusal | None = None,
    at: int | None = None,
    parts_to: Callable[[bytes], object] | None = None,
) -> Contents | Fault:
    """Read a whole file if it is trusted, regular, and of the right size (`size`, at most `limit`).

    `known` is the stamp of the file when it was verified, `refused` its earlier refusal. `at` is
    the descriptor of the file's folder, if the caller has it open. `parts_to` gets the bytes in
    parts; the file is then not held in memory, and the contents have no bytes.
    """
    try:
        if at is None:
            fd = folder.tree.open_read(path)
        else:
            fd = syscalls.open_read(path.rpartition("/")[2], at)
    except OSError as error:
        error.filename = path
        # Any error (ENOENT, ESTALE, ELOOP, EACCES, EIO ...) is a value: the worker must go on.
        return Fault(
            reason=folder.explain(error, path), absent=isinstance(error, FileNotFoundError)
        )
    try:
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
            return Fault(reason=refused.reason, status=status)
        data = b"" if parts_to else syscalls.read_all(fd, length)
        if (syscalls.read_parts(fd, length, parts_to) if parts_to else len(data)) != length:
            return Fault(
                reason=f"{folder.relative(path)} got shorter while it was read", status=status
            )
        # Compared again after the read, because the file may have been changed during the read.
        verified = known is not None and known == stamp(status) == stamp(syscalls.fstat(fd))
        return Contents(data, status, verified)
    except OSError as error:
        return Fault(reason=folder.explain(error, path))
    finally:
        syscalls.close(fd)


def is_writable_in_place(folder: Folder, fd: int) -> bool:
    """Tell whether an open file may be changed: regular, trusted, and with no second name."""
    status = syscalls.fstat(fd)
    return (
        syscalls.is_regular(status)
        and status.st_nlink == 1
        and distrust(status, folder.trust, folder.group) is None
    )


def write_file(folder: Folder, path: str, data: bytes, *, durable: bool) -> set[str]:
    """Write a file atomically; raises OSError, and then leaves no temporary file behind.

    `durable`: the contents survive a power cut, after which a renamed file without fsync can be
    empty. The name survives once the caller has synced the returned folders as well.
    """
    return move(folder, stage(folder, path, (data,), durable=durable), path)


def stage(folder: Folder, path: str, parts: Iterable[bytes], *, durable: bool) -> str:
    """Write a temporary file for the place `path` and return its name; `move` puts it there."""
    temporary = folder.temporary()
    with unlinked_on_error(folder, temporary, path):
        try:
            fd = folder.open_new(temporary)
        except FileNotFoundError:
            make_parents(folder, temporary)
            fd = folder.open_new(temporary)
        try:
            for part in parts:
                syscalls.write_all(fd, part)
            if durable:
                syscalls.fsync(fd)
        finally:
            syscalls.close(fd)
    return temporary


def move(folder: Folder, temporary: str, path: str) -> set[str]:
    """Rename a temporary file to its place; return the folders in which names were added."""
    changed = {path.rpartition("/")[0]}
    with unlinked_on_error(folder, temporary, path):
        for _ in range(_MOVES):
            try:
                folder.tree.rename(temporary, path)
            except FileNotFoundError:
                # The folder is missing, or a cleaner removed it while it was empty. A cleaner may
                # do that again before our file is in the folder (seen once in 2,000 publishes
                # beside a cleaner that never rests).
                changed.update(make_parents(folder, path))
            else:
                return changed
        folder.tree.rename(temporary, path)
    return changed


@contextlib.contextmanager
def unlinked_on_error(folder: Folder, temporary: str, path: str) -> Iterator[None]:
    """Remove a temporary file if the body raises; `path` is the place that the file was for."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):
            folder.tree.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = path  # write and fsync know only a descriptor, and give no name
        raise


def quarantine(folder: Folder, path: str, reason: str, status: os.stat_result | None) -> None:
    """Move a bad file to quarantine, so that the next publish can replace it. Best effort.

    `status` belongs to the file that was read. If another writer has replaced that file since, the
    new file stays.
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
