"""Opens and prepares the folder of a store, or says why the folder can't be used."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from npugx_cache.config import NO_FOLDER, NO_HOME
from npugx_cache.store.format.layout import CACHEDIR_TAG, FOLDERS, VERSION, Folder
from npugx_cache.store.io import syscalls
from npugx_cache.store.io.trust import check_folder, quote_path
from npugx_cache.store.results import Unusable

if TYPE_CHECKING:
    from npugx_cache.config import Settings

_NOT_WRITABLE = f"{VERSION} is not writable here"
_TAG = "CACHEDIR.TAG"
_told: set[str] = set()  # the folders that had their warning
_PARTS = (VERSION, *(f"{VERSION}/{name}" for name in FOLDERS))
_NO_KEY = (
    "NPUGX_CACHE_TRUST=signed needs NPUGX_CACHE_KEY_FILE. Make a key with: npugx-cache key new FILE"
)


def folder_of(settings: Settings) -> Folder | Unusable:
    """Return the folder that the settings name, not opened yet, with the signing key if needed.

    Raises OSError if the key can't be read now.
    """
    if settings.cache_dir == NO_FOLDER:
        return Unusable(NO_HOME, "no home")
    root = os.path.abspath(settings.cache_dir)  # noqa: PTH100  # without following links
    secret = None
    if settings.trust == "signed":
        from npugx_cache.store.format.signing import read_secret

        if settings.key_file is None:
            return Unusable(_NO_KEY, "settings")
        found = read_secret(settings.key_file, root)
        if isinstance(found, str):
            return Unusable(f"NPUGX_CACHE_TRUST=signed: {found}", "untrusted")
        secret = found
    readonly = "NPUGX_CACHE=readonly" if settings.mode == "readonly" else None
    return Folder(root, trust=settings.trust, readonly=readonly, secret=secret)


def prepare_folder(folder: Folder) -> Folder | Unusable:
    """Create what is missing (unless read-only), and check the owner and mode of each folder.

    If the folder exists and can't be written, the store is read-only.
    """
    try:
        found = folder.tree.open(folder.folder_mode if folder.readonly is None else None)
        if isinstance(found, str):
            return Unusable(found, "untrusted")
        opened = folder.but(readonly=folder.readonly, group=found.st_gid)
        parts = _look(opened)
        if folder.trust == "signed":
            opened = opened.but(
                readonly=folder.readonly, sharing=sharing_of(found, parts.get(VERSION))
            )
        denied = folder.readonly
        if denied is None:
            denied = _make_parts(opened, parts)
            if denied is not None and folder.trust == "group" and found.st_mode & stat.S_IWGRP:
                tell_who_can_mend(opened, denied)
        return _check_parts(opened.but(readonly=denied), parts)
    except FileNotFoundError:
        return Unusable(f"{folder.root} does not exist", "missing")
    except (OSError, ValueError) as error:
        return unusable(folder, error)


def sharing_of(root: os.stat_result, version: os.stat_result | None) -> int:
    """Return the permission bits of group and others for the new folders of a signed store.

    They are those of the version folder, so that `chmod` on it lets others read. If there is no
    version folder yet, they give all permissions to those who can write the cache folder (the group
    or everybody), because whoever made that folder shares it with them, and else none.
    """
    if version is not None:
        return version.st_mode & 0o077
    if root.st_mode & stat.S_IWOTH:
        return 0o077
    return 0o070 if root.st_mode & stat.S_IWGRP else 0


def look_again(folder: Folder) -> str | None:
    """Return why an open folder can't be written any more, or None; raises OSError.

    If the folder was removed or replaced, it is opened again as at first, and created if missing.
    Only writers need this, because readers check each file anyway.
    """
    try:
        if folder.tree.is_in_place():
            held = folder.tree.hold_part()
            status = syscalls.fstat(held.fd)
            return check_folder(folder.root, status, folder.trust, folder.group)
    except FileNotFoundError:
        pass
    opened = prepare_folder(folder)
    if isinstance(opened, Unusable):
        return opened.reason
    if folder.trust == "group" and opened.group != folder.group:
        return f"{folder.root} is of group {opened.group} now, and was of group {folder.group}"
    return opened.readonly


def _make_parts(folder: Folder, found: dict[str, os.stat_result]) -> str | None:
    """Create the version's folders that are not in `found`; return why that is denied, or None.

    Adds the new folders to `found`.
    """
    try:
        if folder.part("tmp") in found and not _may_write(folder):
            return _NOT_WRITABLE  # asked first, so that nothing is tried in vain
        missing = [path for path in _PARTS if path not in found]
        for path in missing:
            folder.make_folder(path)
        if not _is_there(folder, _TAG):
            with contextlib.suppress(FileExistsError):
                fd = folder.open_new(_TAG)
                try:
                    syscalls.write_all(fd, CACHEDIR_TAG)
                finally:
                    syscalls.close(fd)
        if missing:
            found |= _look(folder)
            return None if _may_write(folder) else _NOT_WRITABLE
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            return folder.explain(error)
        # Any other error (a full disk) may pass: each publish tries again and gives the reason.
    return None


def _look(folder: Folder) -> dict[str, os.stat_result]:
    """Return the status (owner, mode) of each of the version's folders that exists."""
    found: dict[str, os.stat_result] = {}
    with contextlib.suppress(FileNotFoundError):
        found[VERSION] = folder.tree.lstat(VERSION)
        if syscalls.is_folder(found[VERSION]):
            version = folder.tree.hold_part(VERSION)
            for name in FOLDERS:
                with contextlib.suppress(FileNotFoundError):
                    found[folder.part(name)] = syscalls.lstat(name, version.fd)
    return found


def _is_there(folder: Folder, path: str) -> bool:
    try:
        folder.tree.lstat(path)
    except FileNotFoundError:
        return False
    return True


def _may_write(folder: Folder) -> bool:
    """Tell whether new files may be made. Raises OSError if the system can't tell now."""
    with folder.tree.place(folder.part("tmp")) as (at, name):
        if syscalls.may_write(name, at):
            return True
        syscalls.lstat(name, at)  # `access` says no for any error, also for one that passes
        return False


def _check_parts(folder: Folder, parts: dict[str, os.stat_result]) -> Folder | Unusable:
    """Check each folder, because whoever can write one can put files in it that look like ours."""
    for path, status in parts.items():
        shown = f"{folder.root}/{path}"
        if not syscalls.is_folder(status):
            reason = f"{shown} is not a folder; remove it or name another cache"
            return Unusable(reason, "not a folder")
        fault = check_folder(shown, status, folder.trust, folder.group)
        if fault is not None:
            return Unusable(fault, "untrusted")
    return folder


def tell_who_can_mend(folder: Folder, denied: str) -> None:
    """Warn once that this process can't write a folder that its group shares; name the repair.

    The cause may be a member's umask of 022, with folders that this release did not make.
    """
    import logging

    if folder.root in _told:
        return
    _told.add(folder.root)
    shut = [
        f"{path} (owned by uid {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o})"
        for path, status in _look(folder).items()
        if not status.st_mode & stat.S_IWGRP
    ]
    logging.getLogger("npugx_cache").warning(
        "the cache %s is shared by group %s, but this process can't write it, so nothing new is "
        "stored there: %s%s. Its owner, or root, repairs it with: chmod -R g+rwX %s",
        folder.root,
        folder.group,
        denied,
        f"; not writable for the group: {', '.join(shut)}" if shut else "",
        quote_path(f"{folder.root}/{VERSION}"),
    )


def unusable(folder: Folder, error: Exception) -> Unusable:
    """Return the error of an opening as a value."""
    what = folder.explain(error) if isinstance(error, OSError) else str(error)
    reason = f"{folder.root} can't be used: {what}. Name another folder with NPUGX_CACHE_DIR"
    return Unusable(reason, error.errno if isinstance(error, OSError) else None)
