"""Make a folder ready to be a store, or say why it can't be one."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from npugx_cache.store import syscalls
from npugx_cache.store.layout import CACHEDIR_TAG, FOLDERS, VERSION, Folder, make_folder
from npugx_cache.store.results import Unusable
from npugx_cache.store.trust import check_folder, check_root

if TYPE_CHECKING:
    from npugx_cache.config import Settings

_NO_KEY = (
    "NPUGX_CACHE_TRUST=signed needs NPUGX_CACHE_KEY_FILE. Make a key with: npugx-cache key new FILE"
)


def folder_of(settings: Settings) -> Folder | Unusable:
    """Return the folder that the settings name, with the signing key where they ask for one."""
    root = os.path.abspath(settings.cache_dir)  # noqa: PTH100  # without following links
    secret = None
    if settings.trust == "signed":
        from npugx_cache.store.signing import read_secret

        if settings.key_file is None:
            return Unusable(reason=_NO_KEY)
        found = read_secret(settings.key_file, root)
        if isinstance(found, str):
            return Unusable(reason=f"NPUGX_CACHE_TRUST=signed: {found}")
        secret = found
    readonly = "NPUGX_CACHE=readonly" if settings.mode == "readonly" else None
    return Folder(root, trust=settings.trust, readonly=readonly, secret=secret)


def prepare_folder(folder: Folder) -> Folder | Unusable:
    """Create what is missing (unless it is read-only) and check whom everything belongs to.

    A folder that is there and can't be written becomes a read-only store.
    """
    try:
        if folder.readonly is None:
            _make_root(folder)
        found = check_root(folder.root, folder.trust)
    except FileNotFoundError:
        return Unusable(reason=f"{folder.root} does not exist")
    except (OSError, ValueError) as error:
        return _unusable(folder, error)
    if isinstance(found, str):
        return Unusable(reason=found)
    sharing = sharing_of(folder) if folder.trust == "signed" else 0
    opened = folder.but(readonly=folder.readonly, group=found, sharing=sharing)
    denied = opened.readonly or _make_parts(opened)
    return _check_parts(opened.but(readonly=denied))


def changed_hands(folder: Folder) -> str | None:
    """Say why a folder that is open is no longer trusted, or None; OSError where it is gone.

    One look at it: what a reader takes from it is checked file by file in any case.
    """
    return check_folder(folder.root, syscalls.stat(folder.root), folder.trust, folder.group)


def sharing_of(folder: Folder) -> int:
    """Return what group and others may do with the new folders of a signed store, as mode bits.

    As with its folder of this version, which is made for the owner alone: `chmod` on it lets others
    read. Where others can write the cache folder, whoever made it shares it with them.
    """
    try:
        return syscalls.stat(folder.base).st_mode & 0o077
    except OSError:
        pass
    try:
        mode = syscalls.stat(folder.root).st_mode
    except OSError:
        return 0
    if mode & stat.S_IWOTH:
        return 0o077
    return 0o070 if mode & stat.S_IWGRP else 0


def _make_root(folder: Folder) -> None:
    missing: list[str] = []
    path = folder.root
    while not _is_there(path):
        missing.append(path)
        path = path.rpartition("/")[0] or "/"
    # Outermost first; a umask of 002 must not make them writable for the group.
    for path in reversed(missing):
        make_folder(path, folder.folder_mode)


def _is_there(path: str) -> bool:
    try:
        syscalls.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _make_parts(folder: Folder) -> str | None:
    """Create the version's folders; return why that is denied, or None."""
    try:
        if _is_there(folder.part("tmp")) and not syscalls.may_write(folder.part("tmp")):
            return f"{VERSION} is not writable here"  # asked first: nothing is tried in vain
        make_folder(folder.base, folder.folder_mode)
        for name in FOLDERS:
            make_folder(folder.part(name), folder.folder_mode)
        with contextlib.suppress(FileExistsError):
            fd = syscalls.open_new(f"{folder.root}/CACHEDIR.TAG", folder.file_mode)
            try:
                syscalls.write_all(fd, CACHEDIR_TAG)
            finally:
                syscalls.close(fd)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            return folder.explain(error)
        # Anything else (a full disk) may pass: publishing will try again and say why.
    if not syscalls.may_write(folder.part("tmp")):
        return f"{VERSION} is not writable here"
    return None


def _check_parts(folder: Folder) -> Folder | Unusable:
    """Whoever can write one of these folders can put files in it that look like mine."""
    for name in ("", *FOLDERS):
        path = f"{folder.base}/{name}".rstrip("/")
        try:
            status = syscalls.lstat(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            return _unusable(folder, error)
        if not stat.S_ISDIR(status.st_mode):
            return Unusable(reason=f"{path} is not a folder; remove it or name another cache")
        fault = check_folder(path, status, folder.trust, folder.group)
        if fault is not None:
            return Unusable(reason=fault)
    return folder


def _unusable(folder: Folder, error: Exception) -> Unusable:
    what = folder.explain(error) if isinstance(error, OSError) else str(error)
    return Unusable(
        reason=f"{folder.root} can't be used: {what}. Name another folder with NPUGX_CACHE_DIR"
    )
