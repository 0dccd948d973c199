"""Make a folder ready to be a store, or say why it can't be one."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from npugx_cache.store import syscalls
from npugx_cache.store.layout import CACHEDIR_TAG, FOLDERS, VERSION, Folder, make_folder
from npugx_cache.store.results import Unusable
from npugx_cache.store.trust import SIGNED_UNAVAILABLE, check_folder, check_root

if TYPE_CHECKING:
    from npugx_cache.config import TrustMode


def prepare_folder(root: Path, trust: TrustMode, *, readonly: str | None) -> Folder | Unusable:
    """Create what is missing (unless `readonly`) and check whom everything belongs to.

    A folder that is there and can't be written becomes a read-only store.
    """
    if trust == "signed":
        return Unusable(reason=SIGNED_UNAVAILABLE)
    root = Path(os.path.abspath(root))  # noqa: PTH100  # without following links
    folder = Folder(root=root, trust=trust, readonly=readonly)
    try:
        if readonly is None:
            _make_root(folder)
        fault = check_root(root, trust)
    except FileNotFoundError:
        return Unusable(reason=f"{root} does not exist")
    except (OSError, ValueError) as error:
        return _unusable(folder, error)
    if fault is not None:
        return Unusable(reason=fault)
    if readonly is None:
        denied = _make_parts(folder)
        if denied is not None:
            folder = Folder(root=root, trust=trust, readonly=denied)
    return _check_parts(folder)


def _make_root(folder: Folder) -> None:
    missing = [folder.root]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    # Outermost first; a umask of 002 must not make them writable for the group.
    for path in reversed(missing):
        make_folder(str(path), folder.folder_mode)


def _make_parts(folder: Folder) -> str | None:
    """Create the version's folders; return why that is denied, or None."""
    try:
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
    for name in (VERSION, *(f"{VERSION}/{part}" for part in FOLDERS)):
        path = folder.root / name
        try:
            status = syscalls.lstat(str(path))
        except FileNotFoundError:
            continue
        except OSError as error:
            return _unusable(folder, error)
        if not stat.S_ISDIR(status.st_mode):
            return Unusable(reason=f"{path} is not a folder; remove it or name another cache")
        fault = check_folder(path, status, folder.trust)
        if fault is not None:
            return Unusable(reason=fault)
    return folder


def _unusable(folder: Folder, error: Exception) -> Unusable:
    what = folder.explain(error) if isinstance(error, OSError) else str(error)
    return Unusable(
        reason=f"{folder.root} can't be used: {what}. Name another folder with NPUGX_CACHE_DIR"
    )
