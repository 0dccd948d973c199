"""Whether a file or folder can only have been written by whom the user trusts.

`private`: me or root, and nobody else can write. `group`: opt-in, members of the group as well.
`signed`: anybody; there the signature of an entry says whose it is.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from npugx_cache.store import syscalls

if TYPE_CHECKING:
    from npugx_cache.config import TrustMode

_MAX_LINKS = 40


def distrust(status: os.stat_result, trust: TrustMode) -> str | None:
    """Say why something with this owner and mode is not trusted, or None."""
    if trust == "signed":
        return None
    mode = stat.S_IMODE(status.st_mode)
    if mode & stat.S_IWOTH:
        return f"everybody can write it (mode {mode:04o})"
    if trust == "group":
        return None
    if status.st_uid not in {os.geteuid(), 0}:
        return f"owned by uid {status.st_uid}, and this process runs as uid {os.geteuid()}"
    if mode & stat.S_IWGRP:
        return f"its group can write it (mode {mode:04o})"
    return None


def check_root(root: Path, trust: TrustMode) -> str | None:
    """Say why the folder can't hold a trusted store, and what to do about it, or None.

    Raises OSError where it can't be looked at.
    """
    reason = None if trust == "signed" else _check_path(root)
    if reason is not None:
        return reason
    status = syscalls.stat(str(root))
    if not stat.S_ISDIR(status.st_mode):
        return f"{root} is not a folder; name another one with NPUGX_CACHE_DIR"
    return check_folder(root, status, trust)


def check_folder(path: Path, status: os.stat_result, trust: TrustMode) -> str | None:
    fault = distrust(status, trust)
    if fault is None:
        return None
    import shlex

    quoted = shlex.quote(str(path))
    if status.st_mode & stat.S_IWOTH:
        remedy = f"chmod o-w {quoted}"
    elif status.st_uid not in {os.geteuid(), 0}:
        remedy = f"chown {os.geteuid()} {quoted}, or name another folder with NPUGX_CACHE_DIR"
    else:
        remedy = f"chmod g-w {quoted}, or NPUGX_CACHE_TRUST=group if you trust every member"
    return f"{path} is not trusted: {fault}. Do: {remedy}"


def _check_path(root: Path) -> str | None:
    """Walk to the root as the kernel does and refuse a way that a stranger can redirect."""
    pending = list(reversed(root.parts[1:]))
    current = Path(root.anchor)
    links = 0
    while pending:
        fault = _check_parent(current)
        if fault is not None:
            return fault
        step = current / pending.pop()
        if step.name == "..":
            current = current.parent
            continue
        status = syscalls.lstat(str(step))
        if not stat.S_ISLNK(status.st_mode):
            current = step
            continue
        links += 1
        if links > _MAX_LINKS:
            return f"{root}: too many symbolic links"
        if status.st_uid not in {os.geteuid(), 0}:
            return (
                f"{step} is a symbolic link planted by uid {status.st_uid}. "
                "Name the real folder with NPUGX_CACHE_DIR"
            )
        target = step.readlink()
        pending.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
        current = Path(target.anchor) if target.is_absolute() else current
    return None


def _check_parent(parent: Path) -> str | None:
    status = syscalls.stat(str(parent))
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        import shlex

        return (
            f"{parent} is not trusted: everybody can write it and it has no sticky bit, so the "
            f"cache under it can be replaced. Do: chmod +t {shlex.quote(str(parent))}"
        )
    return None
