"""Opens the files of a store through open descriptors of folders, never through a link.

The folder of the store is opened once, after each folder on the path to it was checked. From there,
each folder is opened by its name in the folder above. So nobody who swaps a folder for another one
can lead a reader or a cleaner somewhere else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING

from npugx_cache.interpreter.forks import survive_forks
from npugx_cache.store.io import syscalls
from npugx_cache.store.io.trust import open_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npugx_cache.config import TrustMode

# The errors of a call whose folder was removed, whose descriptor was closed by other code of the
# process, as when a process turns itself into a daemon, or whose file system is gone: one that is
# mounted again is another file system, and descriptors of the earlier one never work again.
_REPLACED = frozenset(
    {
        *(errno.ENOENT, errno.EBADF, errno.ENOTDIR),
        *(errno.EIO, errno.ENODEV, errno.ENOTCONN, errno.ENXIO, errno.ESHUTDOWN, errno.ESTALE),
    }
)
_PART = 2  # how many names a part of the store has, as in v1/ac


class _Held:
    """An open folder. Its descriptor is closed when nobody refers to the object any more.

    If it were closed earlier, another thread that is about to use the number could meet a different
    folder, because the system gives out numbers again.
    """

    __slots__ = ("fd", "identity", "is_ours")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.is_ours = True
        status = syscalls.fstat(fd)
        self.identity = status.st_dev, status.st_ino

    def is_open(self, fstat: Callable[[int], os.stat_result] = syscalls.fstat) -> bool:
        """Tell whether the descriptor still refers to this folder."""
        try:
            status = fstat(self.fd)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.identity

    def has_a_name(self) -> bool:
        """Tell whether the folder still exists, if only under another name."""
        try:
            return syscalls.fstat(self.fd).st_nlink > 0
        except OSError:
            return False

    def __del__(
        self,
        close: Callable[[int], None] = os.close,
        fstat: Callable[[int], os.stat_result] = os.fstat,
    ) -> None:
        # The system's functions themselves are bound as defaults, because modules are empty when an
        # interpreter ends, and a function of `syscalls` would no longer find them.
        if hasattr(self, "identity") and self.is_ours and self.is_open(fstat):
            close(self.fd)


class Tree:
    """The open folder of a store. If `open` was not called, the first use opens the folder.

    Paths are relative to the store, also in the OSErrors that the methods raise. Forked children
    share the descriptors of their parent; programs that are started don't inherit them. Safe to use
    from several threads, because all stores of a process share the tree of a folder (`tree_of`).
    """

    __slots__ = ("__weakref__", "_parts", "_root", "_trust", "path")

    def __init__(self, path: str, trust: TrustMode) -> None:
        self.path = path
        self._trust = trust
        self._root: _Held | None = None
        # The parts that were opened, such as v1/ac, kept open because they are used again.
        self._parts: dict[str, _Held] = {}

    def open(self, make: int | None = None) -> os.stat_result | str:
        """Open the folder; return its status, or why it can't be trusted. Raises OSError.

        `make` is the mode with which missing folders are created, or None to create none. If the
        folder is open already, and the path still leads to it, nothing changes.
        """
        found = open_root(self.path, self._trust, make)
        if isinstance(found, str):
            return found
        before = self._root
        if before is not None and before.fd == found.fd:
            # Other code closed the folder, and the system gave out its number again.
            before.is_ours = False
        elif before is not None and _is(before, found.status) and before.is_open():
            syscalls.close(found.fd)
            return found.status
        try:
            held = _Held(found.fd)
        except BaseException:
            syscalls.close(found.fd)
            raise
        # In this order, or a thread could keep a part of the earlier folder with the new parts.
        self._root = held
        self._parts = {}
        return found.status

    def hold_part(self, part: str = "") -> _Held:
        """Return a part of the store, such as v1 or v1/ac, or the whole store, and keep it open.

        The descriptor stays valid as long as the caller keeps the returned object.
        """
        if not part:
            return self._whole()
        parts = self._parts  # before the folder above: see `open`
        held = parts.get(part)
        if held is None:
            above, _, name = part.rpartition("/")
            folder = self.hold_part(above)  # kept: a thread that opens the store too lets go of it
            fd = syscalls.step(name, folder.fd)
            try:
                held = _Held(fd)
            except BaseException:
                syscalls.close(fd)
                raise
            parts[part] = held
        return held

    def _whole(self) -> _Held:
        if self._root is None:
            fault = self.open()
            if isinstance(fault, str):
                raise OSError(errno.EPERM, fault, self.path)
        assert self._root is not None
        return self._root

    def is_in_place(self) -> bool:
        """Tell whether the path still leads to the folder that is open; raises OSError.

        Parts of the store that were replaced are opened again at their next use.
        """
        whole = self._root
        if whole is None or not whole.is_open() or not _is(whole, syscalls.stat(self.path)):
            return False
        self._drop_replaced(whole)
        return True

    def _drop_replaced(self, whole: _Held) -> bool:
        """Forget the parts that were replaced; tell whether there were any."""
        dropped = False
        for part, held in list(self._parts.items()):
            with contextlib.suppress(OSError):
                # Only lstat: nothing is opened by this path, whatever links it passes through.
                if held.is_open() and _is(held, syscalls.lstat(part, whole.fd)):
                    continue
            self._parts.pop(part, None)
            dropped = True
        return dropped

    def enter(self, path: str) -> int:
        """Open a folder, to list or sync the names in it; the caller closes it."""
        part, names = _split(path)
        return self.open_below(part, names or ["."], syscalls.open_folder)

    def open_below(self, part: str, names: list[str], opening: Callable[[str, int], int]) -> int:
        """Open the last of these names; the others are the folders on the way from the part.

        The caller closes the returned descriptor.
        """
        try:
            held = self._parts.get(part) or self.hold_part(
                part
            )  # keeps it open until the call is over
            return _descend(held.fd, names, opening)
        except OSError as error:
            if not self._reopen_if_replaced(error, part, names[0]):
                error.filename = "/".join([part, *names] if part else names)
                raise
        held = self.hold_part(part)
        return _descend(held.fd, names, opening)

    def _reopen_if_replaced(self, error: OSError, part: str, name: str) -> bool:
        """Tell whether a call failed because a folder was replaced, so that a retry may succeed.

        Parts that were replaced are opened again at their next use. If the whole store was
        replaced, the new one is opened now. `name` is the name that the call looked up in the part.
        """
        if error.errno not in _REPLACED:
            return False
        held = self._parts.get(part)
        if held is not None and error.errno == errno.ENOENT and held.has_a_name():
            return False  # only a file in the part is missing, as at every miss
        whole = self._whole()
        dropped = self._drop_replaced(whole)
        try:
            syscalls.lstat(part.partition("/")[0] or name, whole.fd)
        except OSError:
            with contextlib.suppress(OSError):
                self.open()
        return dropped or self._root is not whole

    @contextlib.contextmanager
    def place(self, path: str) -> Iterator[tuple[int, str]]:
        """Yield the open folder that `path` lies in, and the last name of the path."""
        folder, _, name = path.rpartition("/")
        part, names = _split(folder)
        try:
            held = self.hold_part(part)
        except OSError as error:
            if not self._reopen_if_replaced(error, part, name):
                error.filename = folder
                raise
            held = self.hold_part(part)
        at = self.open_below(part, names, syscalls.step) if names else held.fd
        try:
            yield at, name
        except OSError as error:
            self._reopen_if_replaced(error, part, name)  # for the next try
            error.filename = path  # the call itself knows only the last name
            raise
        finally:
            if names:
                syscalls.close(at)

    def open_read(self, path: str) -> int:
        # Without `place`, because this is the hot path of a hit.
        part, _, rest = path.partition("/")
        below, _, rest = rest.partition("/")
        if not rest:
            return self.open_below(part, [below], syscalls.open_read)
        return self.open_below(f"{part}/{below}", rest.split("/"), syscalls.open_read)

    def open_append(self, path: str) -> int:
        with self.place(path) as (at, name):
            return syscalls.open_append(name, at)

    def lstat(self, path: str) -> os.stat_result:
        with self.place(path) as (at, name):
            return syscalls.lstat(name, at)

    def touch(self, path: str) -> None:
        with self.place(path) as (at, name):
            syscalls.touch(name, at)

    def unlink(self, path: str) -> None:
        with self.place(path) as (at, name):
            syscalls.unlink(name, at)

    def rmdir(self, path: str) -> None:
        with self.place(path) as (at, name):
            syscalls.rmdir(name, at)

    def rename(self, source: str, target: str) -> None:
        with self.place(source) as (at, name), self.place(target) as (to, new_name):
            syscalls.rename(name, new_name, at, to)

    def fsync(self, path: str) -> None:
        """Make a file, or the names in a folder, survive a power cut."""
        with self.place(path) as (at, name):
            syscalls.fsync_path(name or ".", at)

    def sync_filesystem(self) -> None:
        fd = self.enter("")
        try:
            syscalls.sync_filesystem(fd)
        finally:
            syscalls.close(fd)

    def names(self, path: str) -> list[str]:
        fd = self.enter(path)
        try:
            return syscalls.names(fd)
        finally:
            syscalls.close(fd)

    def subfolders(self, path: str) -> list[str]:
        """Return the names of the folders in a folder, without symbolic links."""
        fd = self.enter(path)
        try:
            return syscalls.subfolders(fd)
        finally:
            syscalls.close(fd)


# A plain dict, because a `WeakValueDictionary` makes more calls at each start. References to trees
# that are gone are removed from time to time.
_trees: dict[tuple[str, TrustMode], weakref.ref[Tree]] = {}
_MANY = 64
_looking = threading.RLock()
survive_forks(sys.modules[__name__], "_looking")


def tree_of(path: str, trust: TrustMode) -> Tree:
    """Return the one tree of this process for a folder, under the trust that its opening checks.

    A process may have thousands of cached functions, each with a store of its own. If each store
    opened the folder for itself, no descriptors would be left for the files of the user.
    """
    with _looking:
        known = _trees.get((path, trust))
        tree = None if known is None else known()
        if tree is None:
            tree = Tree(path, trust)
            if len(_trees) > _MANY:
                for gone in [name for name, each in _trees.items() if each() is None]:
                    del _trees[gone]
            _trees[path, trust] = weakref.ref(tree)
        return tree


def _is(held: _Held, status: os.stat_result) -> bool:
    return (status.st_dev, status.st_ino) == held.identity


def _split(folder: str) -> tuple[str, list[str]]:
    """Split a folder's path into its part of the store, such as v1/ac, and the names below it."""
    names = folder.split("/") if folder else []
    return "/".join(names[:_PART]), names[_PART:]


def _descend(at: int, names: list[str], opening: Callable[[str, int], int]) -> int:
    """Open the last name, through the folders with the other names, following no link."""
    if len(names) == 1:
        return opening(names[0], at)
    below = syscalls.step(names[0], at)
    try:
        # Fast path: a hit has two names.
        if len(names) == 2:
            return opening(names[1], below)
        return _descend(below, names[1:], opening)
    finally:
        syscalls.close(below)
