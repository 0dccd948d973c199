"""Every system call of the store goes through here, so that a test can number them and fail one."""

from __future__ import annotations

import errno
import os
import stat as stat_module

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_read(path: str) -> int:
    """Open for reading, never through a symbolic link and never blocking on a planted FIFO."""
    return os.open(path, _READ_FLAGS)


def open_new(path: str, mode: int) -> int:
    return os.open(path, _NEW_FLAGS, mode)


def open_again(path: str) -> int:
    """Open an existing file to write it anew, in place, once it has been looked at."""
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)


def open_append(path: str) -> int:
    """Open an existing file to write behind its end."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)


def open_folder(path: str) -> int:
    return os.open(path, _FOLDER_FLAGS)


def close(fd: int) -> None:
    os.close(fd)


def read_all(fd: int, size: int) -> bytes:
    """Read `size` bytes, or fewer where the file ends before."""
    data = os.read(fd, size)
    if len(data) == size:
        return data
    parts = [data]
    missing = size - len(data)
    while missing > 0 and parts[-1]:
        parts.append(os.read(fd, missing))
        missing -= len(parts[-1])
    return b"".join(parts)


def write_all(fd: int, data: bytes) -> None:
    # os.write returns a short count on a nearly full disk instead of failing: without the loop
    # a torn file would count as written.
    rest = memoryview(data)
    while rest:
        written = os.write(fd, rest)
        if written <= 0:
            raise OSError(errno.EIO, "write made no progress")
        rest = rest[written:]


def truncate(fd: int) -> None:
    os.ftruncate(fd, 0)


def fsync(fd: int) -> None:
    os.fsync(fd)


def fsync_path(path: str) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    fd = open_read(path)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_filesystem(path: str) -> None:
    """Make all that was written to the file system of a folder survive a power cut: syncfs(2)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    fd = open_folder(path)
    try:
        if libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
    finally:
        os.close(fd)


def rename(source: str, target: str) -> None:
    # The rule asks for pathlib; str paths keep the hot path free of Path objects.
    os.rename(source, target)  # noqa: PTH104


def unlink(path: str) -> None:
    os.unlink(path)  # noqa: PTH108


def mkdir(path: str, mode: int) -> None:
    os.mkdir(path, mode)  # noqa: PTH102


def rmdir(path: str) -> None:
    os.rmdir(path)  # noqa: PTH106


def names(folder: str | int) -> list[str]:
    """Return the names in a folder (a path or descriptor), without `.` and `..`."""
    return os.listdir(folder)  # noqa: PTH208


def subfolders(path: str) -> list[str]:
    """Return the names of the folders in a folder, without links to some."""
    with os.scandir(path) as found:
        return [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]


def fstat(fd: int) -> os.stat_result:
    return os.fstat(fd)


def stat(path: str) -> os.stat_result:
    return os.stat(path)  # noqa: PTH116


def lstat(path: str) -> os.stat_result:
    return os.lstat(path)


def readlink(path: str) -> str:
    return os.readlink(path)  # noqa: PTH115


def touch(path: str) -> None:
    """Set the times to now. Explicit times would need ownership; `None` only needs write access."""
    os.utime(path, None)


def may_write(path: str) -> bool:
    return os.access(path, os.W_OK, effective_ids=True)


def free_bytes(path: str) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def random_name() -> str:
    """Return 32 hex digits that no other process, thread or forked child has."""
    return os.urandom(16).hex()


def is_regular(status: os.stat_result) -> bool:
    return stat_module.S_ISREG(status.st_mode)


def is_folder(status: os.stat_result) -> bool:
    return stat_module.S_ISDIR(status.st_mode)


def filesystem_magic(path: str) -> int:
    """Return the file system's magic number (statfs(2)), which `os` does not give."""
    import ctypes

    # The buffer is larger than any struct statfs; its first field is a long on every Linux.
    buffer = ctypes.create_string_buffer(512)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF
