"""Every system call of the store goes through here, so that a test can number them and fail one.

`at` is the descriptor of the folder that a name is in. A call that opens or changes a file gets a
name without `/` with `at`, so that the call passes through no link, even if somebody swaps a folder
for a link in the meantime. Only `lstat` is also given paths of several names.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from itertools import islice
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NEW_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_APPEND_FLAGS = (
    os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
)
_LOCK_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TEXT_AT_MOST = 1 << 16
_PART = 1 << 20
_LINK_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_read(path: str, at: int | None = None) -> int:
    """Open for reading, never through a symbolic link and never blocking on a planted FIFO."""
    return os.open(path, _READ_FLAGS, dir_fd=at)


def open_new(path: str, mode: int, at: int | None = None) -> int:
    return os.open(path, _NEW_FLAGS, mode, dir_fd=at)


def open_lock(path: str, at: int) -> int:
    """Open an existing lock file to read and write, or only to read if writing is not allowed."""
    try:
        return os.open(path, _LOCK_FLAGS | os.O_RDWR, dir_fd=at)
    except PermissionError:
        return os.open(path, _LOCK_FLAGS | os.O_RDONLY, dir_fd=at)  # that is enough to lock it


def open_append(path: str, at: int) -> int:
    """Open an existing file to append to it, never blocking on a planted FIFO."""
    return os.open(path, _APPEND_FLAGS, dir_fd=at)


def lock_now(fd: int) -> bool:
    """Lock an open file until it is closed; False, at once, if another process has the lock."""
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def open_folder(path: str, at: int | None = None) -> int:
    """Open a folder to list it or to sync it."""
    return os.open(path, _FOLDER_FLAGS, dir_fd=at)


def step(name: str, at: int | None = None) -> int:
    """Open a folder only to open names in it, which needs no permission to list the folder."""
    return os.open(name, _STEP_FLAGS, dir_fd=at)


def open_link(name: str, at: int) -> int:
    """Open a file by its name; a symbolic link itself is opened, not its target."""
    return os.open(name, _LINK_FLAGS, dir_fd=at)


def close(fd: int) -> None:
    os.close(fd)


def read_all(fd: int, size: int) -> bytes:
    """Read `size` bytes, or fewer if the file is shorter."""
    data = os.read(fd, size)
    if len(data) == size:
        return data
    parts = [data]
    missing = size - len(data)
    while missing > 0 and parts[-1]:
        parts.append(os.read(fd, missing))
        missing -= len(parts[-1])
    return b"".join(parts)


def reader(fd: int) -> IO[bytes]:
    """Return an open file to read from, which closes the descriptor."""
    return os.fdopen(fd, "rb")


def read_parts(fd: int, size: int, each: Callable[[bytes], object]) -> int:
    """Hand over the bytes of a file in parts, at most `size`; return how many there were."""
    left = size
    while left > 0 and (part := os.read(fd, min(left, _PART))):
        each(part)
        left -= len(part)
    return size - left


def text_of(path: str) -> str:
    """Return the text of a small file of the system, such as those below /proc."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        parts = [os.read(fd, _TEXT_AT_MOST)]
        while parts[-1]:
            parts.append(os.read(fd, _TEXT_AT_MOST))
    finally:
        os.close(fd)
    return b"".join(parts).decode("utf-8", "replace")


def write_all(fd: int, data: bytes) -> None:
    # On a nearly full disk os.write returns a short count instead of failing. Without the loop a
    # torn file would count as written.
    rest = memoryview(data)
    while rest:
        written = os.write(fd, rest)
        if written <= 0:
            raise OSError(errno.EIO, "write made no progress")
        rest = rest[written:]


def read_at_start(fd: int, size: int) -> bytes:
    return os.pread(fd, size, 0)


def write_at_start(fd: int, data: bytes) -> None:
    os.pwrite(fd, data, 0)


def truncate(fd: int) -> None:
    os.ftruncate(fd, 0)


def fsync(fd: int) -> None:
    os.fsync(fd)


def fsync_path(path: str, at: int | None = None) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    fd = open_read(path, at)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_filesystem(fd: int) -> None:
    """Sync the whole file system of an open folder, so that all files in it survive a power cut."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def rename(source: str, target: str, at: int | None = None, to: int | None = None) -> None:
    # ruff asks for pathlib; str paths keep Path objects out of the hot path.
    os.rename(source, target, src_dir_fd=at, dst_dir_fd=to)


def unlink(path: str, at: int | None = None) -> None:
    os.unlink(path, dir_fd=at)


def mkdir(path: str, mode: int, at: int | None = None) -> None:
    os.mkdir(path, mode, dir_fd=at)


def rmdir(path: str, at: int | None = None) -> None:
    os.rmdir(path, dir_fd=at)


def names(fd: int) -> list[str]:
    """Return the names in an open folder, without `.` and `..`."""
    return os.listdir(fd)


def some_names(fd: int, count: int) -> list[str]:
    """Return at most `count` of the names in an open folder, in the folder's own order."""
    with os.scandir(fd) as found:
        return [entry.name for entry in islice(found, count)]


def subfolders(fd: int) -> list[str]:
    """Return the names of the folders in an open folder, without symbolic links."""
    with os.scandir(fd) as found:
        return [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]


def fstat(fd: int) -> os.stat_result:
    return os.fstat(fd)


def stat(path: str) -> os.stat_result:
    return os.stat(path)  # noqa: PTH116


def lstat(path: str, at: int | None = None) -> os.stat_result:
    return os.stat(path, dir_fd=at, follow_symlinks=False)


def readlink(fd: int) -> str:
    """Return the target of an open symbolic link."""
    return os.readlink("", dir_fd=fd)


def touch(name: str, at: int) -> None:
    """Set a file's times to now. Explicit times would need ownership; `None` needs write access."""
    os.utime(name, None, dir_fd=at, follow_symlinks=False)


def set_mode(fd: int, mode: int) -> None:
    os.fchmod(fd, mode)


def set_group(fd: int, group: int) -> None:
    os.fchown(fd, -1, group)


def has_access_list(fd: int) -> bool:
    """Tell whether a POSIX ACL may let more users write than the mode of an open file says."""
    try:
        os.getxattr(f"/proc/self/fd/{fd}", "system.posix_acl_access")
    except OSError as error:
        return error.errno not in {errno.ENODATA, errno.ENOTSUP}
    return True


def may_write(name: str, at: int) -> bool:
    return os.access(name, os.W_OK, dir_fd=at, effective_ids=True)


def free_bytes(path: str | int) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def random_name() -> str:
    """Return 32 hex digits that no other process, thread or forked child has."""
    return os.urandom(16).hex()


def is_regular(status: os.stat_result) -> bool:
    return stat_module.S_ISREG(status.st_mode)


def is_folder(status: os.stat_result) -> bool:
    return stat_module.S_ISDIR(status.st_mode)


def filesystem_magic(path: str | int) -> int:
    """Return the file system's magic number by statfs(2), which `os` does not offer."""
    import ctypes

    # The buffer is larger than any struct statfs; its first field is a long on every Linux.
    buffer = ctypes.create_string_buffer(512)
    libc = ctypes.CDLL(None, use_errno=True)
    failed = (
        libc.fstatfs(path, buffer)
        if isinstance(path, int)
        else libc.statfs(os.fsencode(path), buffer)
    )
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF
