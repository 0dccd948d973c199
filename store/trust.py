"""Whether a file or folder can only have been written by whom the user trusts.

`private`: me or root, and nobody else can write. `group`: opt-in, whoever is in the group of the
store's folder as well. `signed`: anybody; there the signature of an entry says whose it is.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from npugx_cache.store import syscalls

if TYPE_CHECKING:
    from npugx_cache.config import TrustMode

_MAX_LINKS = 40
_OTHER_FOLDER = "or name another folder with NPUGX_CACHE_DIR"


def distrust(status: os.stat_result, trust: TrustMode, group: int | None) -> str | None:
    """Say why something with this owner and mode is not trusted, or None.

    `group` is the group of the store's folder, where its members are trusted.
    """
    if trust == "signed":
        return None
    mode, uid = status.st_mode, status.st_uid
    if mode & stat.S_IWOTH:
        return f"everybody can write it (mode {stat.S_IMODE(mode):04o})"
    ours = uid in {os.geteuid(), 0}
    if trust == "group":
        # In a folder that only the group can write, a file of this group is a member's.
        if (not ours or mode & stat.S_IWGRP) and status.st_gid != group:
            who = "its group can write it" if ours else f"owned by uid {uid}"
            return f"{who}, and it is of group {status.st_gid} instead of {group}"
        return None
    if not ours:
        return f"owned by uid {uid}, and this process runs as uid {os.geteuid()}"
    if mode & stat.S_IWGRP:
        return f"its group can write it (mode {stat.S_IMODE(mode):04o})"
    return None


def check_root(root: str, trust: TrustMode) -> int | str:
    """Return the group of a folder that can hold a trusted store, or say why it can't.

    Raises OSError where it can't be looked at.
    """
    open_groups: set[int] = set()
    if trust != "signed":
        fault = _check_path(root, open_groups)
        if fault is not None:
            return fault
    status = syscalls.stat(root)
    if not stat.S_ISDIR(status.st_mode):
        return f"{root} is not a folder; name another one with NPUGX_CACHE_DIR"
    fault = check_folder(root, status, trust, status.st_gid)
    if fault is None and trust == "group":
        fault = _check_group(root, status, open_groups)
    return status.st_gid if fault is None else fault


def check_folder(
    path: str, status: os.stat_result, trust: TrustMode, group: int | None
) -> str | None:
    fault = distrust(status, trust, group)
    if fault is None:
        return None
    quoted = _quoted(path)
    if status.st_mode & stat.S_IWOTH:
        remedy = f"chmod o-w {quoted}"
    elif trust == "group":
        remedy = f"chgrp {group} {quoted}, {_OTHER_FOLDER}"
    elif status.st_uid not in {os.geteuid(), 0}:
        remedy = f"chown {os.geteuid()} {quoted}, {_OTHER_FOLDER}"
    else:
        remedy = f"chmod g-w {quoted}, or NPUGX_CACHE_TRUST=group if you trust every member"
    return f"{path} is not trusted: {fault}. Do: {remedy}"


def _check_group(root: str, status: os.stat_result, open_groups: set[int]) -> str | None:
    """Say why a folder is not one that members of a group of ours share, or None.

    A folder of mine or root's needs no such proof. Of another user's, it must be that only a
    member can have given it to the group (chgrp demands that), and that he meant to share it.
    """
    if status.st_uid in {os.geteuid(), 0}:
        return None
    owner, group = status.st_uid, status.st_gid
    if os.geteuid() != 0 and group not in {os.getegid(), *os.getgroups()}:
        what = f"of group {group}, which this process is not in"
    elif not status.st_mode & stat.S_IWGRP:
        what = f"not shared with its group {group} (mode {stat.S_IMODE(status.st_mode):04o})"
    elif group in open_groups:
        # A new folder takes over the group of the one it is made in (setgid, or the mount).
        what = f"of group {group} like a folder above it that everybody can write"
    else:
        return None
    return (
        f"{root} is not trusted: owned by uid {owner} and {what}. "
        f"Do: chown {os.geteuid()} {_quoted(root)}, {_OTHER_FOLDER}"
    )


def _check_path(root: str, open_groups: set[int]) -> str | None:
    """Walk to the root as the kernel does and refuse a way that a stranger can redirect.

    The groups of folders on the way that everybody can write are added to `open_groups`.
    """
    pending = root.split("/")[::-1]
    current, status = "", syscalls.stat("/")
    links = 0
    while pending:
        name = pending.pop()
        if name in {"", "."}:
            continue
        if status.st_mode & stat.S_IWOTH:
            if not status.st_mode & stat.S_ISVTX:
                return _replaceable(current or "/")
            open_groups.add(status.st_gid)
        step = current.rpartition("/")[0] if name == ".." else f"{current}/{name}"
        found = syscalls.lstat(step or "/")
        if not stat.S_ISLNK(found.st_mode):
            current, status = step, found
            continue
        links += 1
        if links > _MAX_LINKS:
            return f"{root}: too many symbolic links"
        if found.st_uid not in {os.geteuid(), 0}:
            return (
                f"{step} is a symbolic link planted by uid {found.st_uid}. "
                "Name the real folder with NPUGX_CACHE_DIR"
            )
        target = syscalls.readlink(step)
        pending.extend(target.split("/")[::-1])
        if target.startswith("/"):
            current, status = "", syscalls.stat("/")
    return None


def _replaceable(parent: str) -> str:
    return (
        f"{parent} is not trusted: everybody can write it and it has no sticky bit, so the "
        f"cache under it can be replaced. Do: chmod +t {_quoted(parent)}"
    )


def _quoted(path: str) -> str:
    import shlex

    return shlex.quote(path)
