"""Tells whether only people whom the user trusts can have written a file or folder.

Trust `private`: this user and root, and nobody else can write. `group`: the members of the group of
the store's folder as well. `signed`: anybody; there the signature of an entry says whose it is.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.store.io import syscalls

if TYPE_CHECKING:
    from npugx_cache.config import TrustMode

_MAX_LINKS = 40
_OTHER_FOLDER = "or name another folder with NPUGX_CACHE_DIR"
_ALL_IDS = ["0", "0", "4294967295"]
_USUAL_OVERFLOW = 65534
_NONE = -1
# By kind of id, as they were when a store was last opened.
_unmapped: dict[str, int] = {}


def unmapped(kind: str) -> int:
    """Return the id ("uid", "gid") that every id unknown to this user namespace is shown as.

    What has it is nobody's, also if this process has it: an unknown user's folder would look like
    one's own. -1, which is no id, where the namespace knows all.
    """
    found = _unmapped.get(kind)
    if found is None:
        found = _unmapped[kind] = _look_up_unmapped(kind)
    return found


def _look_up_unmapped(kind: str) -> int:
    try:
        if syscalls.text_of(f"/proc/self/{kind}_map").split() == _ALL_IDS:
            return _NONE
    except OSError:
        if _has_no_namespaces():
            return _NONE
    try:
        return int(syscalls.text_of(f"/proc/sys/kernel/overflow{kind}"))
    except (OSError, ValueError):
        return _USUAL_OVERFLOW


def _has_no_namespaces() -> bool:
    """Tell whether the kernel has no user namespaces; where /proc is missing nobody knows."""
    try:
        syscalls.stat("/proc/self/status")
        syscalls.stat("/proc/self/uid_map")
    except FileNotFoundError as error:
        return bool(error.filename != "/proc/self/status")
    except OSError:
        pass
    return False


def is_ours(uid: int) -> bool:
    """Tell whether a user id is this process's or root's."""
    # Asked for each file that is read: a set would be made each time.
    return (uid == os.geteuid() or uid == 0) and uid != unmapped("uid")


def distrust(status: os.stat_result, trust: TrustMode, group: int | None) -> str | None:
    """Say why something with this owner and mode is not trusted, or None.

    `group` is the group of the store's folder, where its members are trusted.
    """
    if trust == "signed":
        return None
    mode, uid = status.st_mode, status.st_uid
    if mode & stat.S_IWOTH:
        return f"everybody can write it (mode {stat.S_IMODE(mode):04o})"
    ours = is_ours(uid)
    if ours and not mode & stat.S_IWGRP:
        return None
    if trust == "group":
        # In a folder that only the group can write, a file of this group is a member's.
        if (not ours or mode & stat.S_IWGRP) and status.st_gid != group:
            who = "its group can write it" if ours else f"owned by uid {uid}"
            return f"{who}, and it is of group {status.st_gid} instead of {group}"
        if status.st_gid == unmapped("gid"):
            return f"its group {status.st_gid} is none that this user namespace knows"
        return None if ours or _is_member(uid, group) else _not_a_member(uid, group)
    if not ours:
        return _foreign(uid)
    return f"its group can write it (mode {stat.S_IMODE(mode):04o})"


def _foreign(uid: int) -> str:
    if uid == unmapped("uid"):
        return f"owned by uid {uid}, which stands for all users that this user namespace lacks"
    return f"owned by uid {uid}, and this process runs as uid {os.geteuid()}"


def _not_a_member(uid: int, group: int | None) -> str:
    return f"owned by uid {uid}, of whom nobody knows here that they are in group {group} now"


def _is_member(uid: int, group: int | None) -> bool:
    # Looked up where it is needed: a folder of one user never asks.
    from npugx_cache.store.io.accounts import is_member

    if group is None or uid == unmapped("uid") or group == unmapped("gid"):
        return False
    return is_member(uid, group)


class Opened(NamedTuple):
    """The folder of a store, open, and whose it is."""

    fd: int
    status: os.stat_result


def open_root(root: str, trust: TrustMode, make: int | None = None) -> Opened | str:
    """Open a folder that can hold a trusted store, or say why it can't.

    Where `make` is given, folders that are missing are made with that mode. The way to the folder
    is walked by descriptors: what is looked at is what is used, and a folder on the way that is
    swapped later changes nothing. Raises OSError where the folder can't be opened.
    """
    _unmapped.clear()  # this process may have entered a user namespace since
    way = _Way(root, trust, make)
    found = way.walk()
    if isinstance(found, str):
        return found
    try:
        status = syscalls.fstat(found)
        fault = check_folder(root, status, trust, status.st_gid)
        if fault is None and trust == "group":
            fault = way.fault_for(status.st_gid) or _check_group(root, status)
    except BaseException:
        syscalls.close(found)
        raise
    if fault is not None:
        syscalls.close(found)
        return fault
    return Opened(found, status)


def check_root(root: str, trust: TrustMode) -> int | str:
    """Return the group of a folder that can hold a trusted store, or say why it can't.

    Raises OSError where it can't be looked at.
    """
    found = open_root(root, trust)
    if isinstance(found, str):
        return found
    syscalls.close(found.fd)
    return found.status.st_gid


def check_folder(
    path: str, status: os.stat_result, trust: TrustMode, group: int | None
) -> str | None:
    fault = distrust(status, trust, group)
    if fault is None:
        return None
    name = quoted(path)
    if status.st_mode & stat.S_IWOTH:
        remedy = f"chmod o-w {name}"
    elif not is_ours(status.st_uid):
        remedy = f"chown {os.geteuid()} {name}, {_OTHER_FOLDER}"
    elif trust == "group":
        remedy = f"chgrp {group} {name}, {_OTHER_FOLDER}"
    else:
        remedy = f"chmod g-w {name}, or NPUGX_CACHE_TRUST=group if you trust every member"
    return f"{path} is not trusted: {fault}. Do: {remedy}"


def _check_group(root: str, status: os.stat_result) -> str | None:
    """Say why a folder of a member of the group is not one that the group shares, or None."""
    if is_ours(status.st_uid):
        return None
    owner, group = status.st_uid, status.st_gid
    if os.geteuid() != 0 and group not in {os.getegid(), *os.getgroups()}:
        what = f"of group {group}, which this process is not in"
    elif not status.st_mode & stat.S_IWGRP:
        what = f"not shared with its group {group} (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return None
    return (
        f"{root} is not trusted: owned by uid {owner} and {what}. "
        f"Do: chown {os.geteuid()} {quoted(root)}, {_OTHER_FOLDER}"
    )


class _Way:
    """The way to a store's folder, walked as the kernel does, link by link.

    Whoever can replace a folder on it chooses what is found at its end: a folder of the user's own
    with a stranger's files in it, for one. Under trust `signed` the files prove whose they are;
    there only links that strangers planted are refused, which would have a worker make its folders
    among the user's other files.
    """

    def __init__(self, root: str, trust: TrustMode, make: int | None) -> None:
        self._root = root
        self._trust = trust
        self._make = make
        self._pending = root.split("/")[::-1]
        self._of_links = len(self._pending)  # names further up were not given by the user
        self._links = 0
        self._shown = ""
        # Folders that the members of the store's group must answer for, once that is known.
        self._others: list[tuple[str, os.stat_result]] = []

    def walk(self) -> int | str:
        """Return the descriptor of the folder at the end, or say who could redirect the way."""
        current = syscalls.step("/")
        try:
            while self._pending:
                name = self._pending.pop()
                if name in {"", "."}:
                    continue
                found = self._step(name, current)
                if isinstance(found, str):
                    return found
                syscalls.close(current)
                current = found
            done, current = current, -1
            return done
        finally:
            if current >= 0:
                syscalls.close(current)

    def _step(self, name: str, at: int) -> int | str:
        shown = f"{self._shown}/{name}"
        try:
            if name == "..":
                self._shown = self._shown.rpartition("/")[0]
                return syscalls.step("..", at)
            fault = self._fault(at)
            if fault is not None:
                return fault
            try:
                found = syscalls.step(name, at)
            except FileNotFoundError:
                if self._make is None or len(self._pending) >= self._of_links:
                    raise
                self._create(name, at)
                found = syscalls.step(name, at)
            except OSError as error:
                if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
                    raise
                return self._follow(name, at)
        except OSError as error:
            error.filename = shown  # the call knows the last name only
            raise
        self._shown = shown
        return found

    def _create(self, name: str, at: int) -> None:
        try:
            syscalls.mkdir(name, self._make or 0, at)
        except FileExistsError:
            return
        if self._trust == "group" and not any(self._pending):
            # A umask of 022 must not shut the others out of a folder that they are to share.
            share_folder(name, at, self._make or 0, None)

    def _follow(self, name: str, at: int) -> int | str:
        """Go on where a symbolic link points to; return the descriptor to start from."""
        shown = f"{self._shown}/{name}"
        link = syscalls.open_link(name, at)
        try:
            status = syscalls.fstat(link)
            if not stat.S_ISLNK(status.st_mode):
                return f"{shown} is not a folder; name another one with NPUGX_CACHE_DIR"
            if not is_ours(status.st_uid):
                return (
                    f"{shown} is a symbolic link planted by uid {status.st_uid}. "
                    "Name the real folder with NPUGX_CACHE_DIR"
                )
            target = syscalls.readlink(link)
        finally:
            syscalls.close(link)
        self._links += 1
        if self._links > _MAX_LINKS:
            return f"{self._root}: too many symbolic links"
        self._of_links = min(self._of_links, len(self._pending))
        self._pending.extend(target.split("/")[::-1])
        if target.startswith("/"):
            self._shown = ""
            return syscalls.step("/")
        return syscalls.step(".", at)

    def _fault(self, at: int) -> str | None:
        """Say why a folder in which the next name is looked up is not trusted, or None."""
        if self._trust == "signed":
            return None
        status = syscalls.fstat(at)
        if not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and is_ours(status.st_uid):
            return None  # as nearly all are
        path = self._shown or "/"
        fault = _check_parent(path, status, at, None)
        if fault is not None and self._trust == "group":
            self._others.append((path, status))
            return None
        return fault

    def fault_for(self, group: int) -> str | None:
        """Say which folder on the way the group of the store can't answer for, or None."""
        for path, status in self._others:
            fault = _check_parent(path, status, None, group)
            if fault is not None:
                return fault
        return None


def _check_parent(
    path: str, status: os.stat_result, at: int | None, group: int | None
) -> str | None:
    """Say who could replace what lies in a folder, or None. `group`: its members are trusted."""
    mode, uid, gid = status.st_mode, status.st_uid, status.st_gid
    if not is_ours(uid) and not _is_member(uid, group):
        fault = _foreign(uid) if group is None else _not_a_member(uid, group)
        remedy = f"chown {os.geteuid()}"
    elif mode & stat.S_ISVTX:
        return None  # there only the owner of a folder can replace it
    elif mode & stat.S_IWOTH:
        fault, remedy = "everybody can write it, and it has no sticky bit", "chmod +t"
    elif mode & stat.S_IWGRP and not (gid == group and gid != unmapped("gid")):
        if _is_mine_alone(gid, at):
            return None
        fault = f"its group {gid} can write it, and it has no sticky bit"
        remedy = "chmod +t"
    else:
        return None
    return (
        f"{path} is not trusted: {fault} (mode {stat.S_IMODE(mode):04o}, owned by uid {uid}), so "
        f"the cache under it can be replaced. Do: {remedy} {quoted(path)}, {_OTHER_FOLDER}"
    )


def _is_mine_alone(group: int, at: int | None) -> bool:
    """Tell whether the group bits of a folder's mode let in nobody but this user and root."""
    from npugx_cache.store.io.accounts import is_mine_alone

    if at is None or group == unmapped("gid"):
        return False
    return is_mine_alone(group) and not syscalls.has_access_list(at)


def share_folder(name: str, at: int, mode: int, group: int | None) -> None:
    """Let the group write a folder that this process has just made, whatever the umask."""
    fd = syscalls.open_folder(name, at)
    try:
        share(fd, mode, group)
    finally:
        syscalls.close(fd)


def share(fd: int, mode: int, group: int | None) -> None:
    """Give the group what this process has just made; left as it is where that is not allowed."""
    try:
        status = syscalls.fstat(fd)
        if group is not None and status.st_gid != group:
            syscalls.set_group(fd, group)
        syscalls.set_mode(fd, status.st_mode & (stat.S_ISGID | stat.S_ISVTX) | mode)
    except OSError:
        pass  # of a group that this process is not in: its own files stay its own


def quoted(path: str) -> str:
    import shlex

    return shlex.quote(path)
