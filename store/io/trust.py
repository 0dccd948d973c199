"""Tells whether only people whom the user trusts can have written a file or folder.

Trust `private`: only this user and root may write. `group`: the members of the group of the store's
folder may write as well. `signed`: anybody may write, because signatures prove the origin.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from npugx_cache.passing import is_passing
from npugx_cache.records import NamedTuple
from npugx_cache.store.io import syscalls

if TYPE_CHECKING:
    from npugx_cache.config import TrustMode

_MAX_LINKS = 40
_OTHER_FOLDER = "or name another folder with NPUGX_CACHE_DIR"
_ALL_IDS = ["0", "0", "4294967295"]
_USUAL_OVERFLOW = 65534
_NONE = -1
# The answers of `unmapped_id` by kind of id; `open_root` clears them.
_unmapped: dict[str, int] = {}


def unmapped_id(kind: str) -> int:
    """Return the id that the kernel shows for each id that this user namespace does not know.

    `kind` is "uid" or "gid". A file with this id never counts as ours, even if this process has the
    id too, because the folder of an unknown user would then look like ours. Returns -1, which is no
    id, if the namespace knows all ids. Raises OSError if the system can't tell now.
    """
    found = _unmapped.get(kind)
    if found is None:
        found = _unmapped[kind] = _look_up_unmapped(kind)
    return found


def _look_up_unmapped(kind: str) -> int:
    try:
        if syscalls.text_of(f"/proc/self/{kind}_map").split() == _ALL_IDS:
            return _NONE
    except OSError as error:
        if is_passing(error):
            raise
        if _has_no_namespaces():
            return _NONE
    try:
        return int(syscalls.text_of(f"/proc/sys/kernel/overflow{kind}"))
    except (OSError, ValueError) as error:
        if is_passing(error):
            raise
        return _USUAL_OVERFLOW


def _has_no_namespaces() -> bool:
    """Tell whether the kernel has no user namespaces; False without /proc, which would tell."""
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
    # Runs for each file that is read, so it makes no set of the two ids.
    return (uid == os.geteuid() or uid == 0) and uid != unmapped_id("uid")


def distrust(status: os.stat_result, trust: TrustMode, group: int | None) -> str | None:
    """Return why a file or folder with this owner and mode is not trusted, or None.

    `group` is the group of the store's folder; under trust `group` its members are trusted.
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
        # Only members can write the folder, so a member has made each file of this group in it.
        if (not ours or mode & stat.S_IWGRP) and status.st_gid != group:
            who = "its group can write it" if ours else f"owned by uid {uid}"
            return f"{who}, and it is of group {status.st_gid} instead of {group}"
        if status.st_gid == unmapped_id("gid"):
            return f"this user namespace does not know its group {status.st_gid}"
        return None if ours or _is_member(uid, group) else _not_a_member(uid, group)
    if not ours:
        return _foreign(uid)
    return f"its group can write it (mode {stat.S_IMODE(mode):04o})"


def _foreign(uid: int) -> str:
    if uid == unmapped_id("uid"):
        return f"owned by uid {uid}, which stands for all users unknown to this user namespace"
    return f"owned by uid {uid}, and this process runs as uid {os.geteuid()}"


def _not_a_member(uid: int, group: int | None) -> str:
    return f"owned by uid {uid}, whom this host does not know as a member of group {group}"


def _is_member(uid: int, group: int | None) -> bool:
    # Imported where it is needed: a folder of one user never needs it.
    from npugx_cache.store.io.accounts import is_member

    if group is None or uid == unmapped_id("uid") or group == unmapped_id("gid"):
        return False
    return is_member(uid, group)


class Opened(NamedTuple):
    """The open folder of a store, with its owner and mode."""

    fd: int
    status: os.stat_result


def open_root(root: str, trust: TrustMode, make: int | None = None) -> Opened | str:
    """Open the folder of a store, or return why a store in this folder can't be trusted.

    If `make` is given, missing folders are created with that mode. The path to the folder is walked
    by descriptors, so that the folders that are checked are the folders that are used; to swap one
    of them later changes nothing. Raises OSError if the folder can't be opened.
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


def check_folder(
    path: str, status: os.stat_result, trust: TrustMode, group: int | None
) -> str | None:
    fault = distrust(status, trust, group)
    if fault is None:
        return None
    name = quote_path(path)
    if status.st_mode & stat.S_IWOTH:
        remedy = f"chmod o-w {name}"
    elif not is_ours(status.st_uid):
        remedy = _to_own(path, status)
    elif trust == "group":
        remedy = f"chgrp {group} {name}, {_OTHER_FOLDER}"
    else:
        remedy = f"chmod g-w {name}, or NPUGX_CACHE_TRUST=group if you trust every member"
    return f"{path} is not trusted: {fault}. Do: {remedy}"


def _check_group(root: str, status: os.stat_result) -> str | None:
    """Return why another user's folder is not one that the group shares, or None."""
    if is_ours(status.st_uid):
        return None
    owner, group = status.st_uid, status.st_gid
    if os.geteuid() != 0 and group not in {os.getegid(), *os.getgroups()}:
        what = f"of group {group}, which this process is not in"
    elif not status.st_mode & stat.S_IWGRP:
        what = f"not shared with its group {group} (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return None
    return f"{root} is not trusted: owned by uid {owner} and {what}. Do: {_to_own(root, status)}"


def _to_own(path: str, status: os.stat_result) -> str:
    """What lets a folder count as this process's own, in words."""
    unknown, remedy = unmapped_id("uid"), f"chown {os.geteuid()} {quote_path(path)}"
    if os.geteuid() == unknown:
        return f"run as another user than uid {unknown}, which no folder can belong to here"
    if status.st_uid == unknown:  # `chown` is refused, too, for an owner that nobody here knows
        remedy = f"let this user namespace know the owner of {quote_path(path)}"
    return f"{remedy}, {_OTHER_FOLDER}" if path != "/" else remedy


class _Way:
    """Walks the path to a store's folder as the kernel does, link by link, and checks each folder.

    Whoever can replace a folder on the path chooses the folder at its end, such as another folder
    of the same user that holds a stranger's files. Under trust `signed` the files prove their
    origin, so only links that strangers planted are refused: through such a link a worker would
    create its folders among the user's other files.
    """

    def __init__(self, root: str, trust: TrustMode, make: int | None) -> None:
        self._root = root
        self._trust = trust
        self._make = make
        self._pending = root.split("/")[::-1]
        # A name after which at least this many are pending came from a link, not from the user.
        self._of_links = len(self._pending)
        self._links = 0
        self._shown = ""
        # Folders that are trusted only if the store's group is, which is known at the end.
        self._others: list[tuple[str, os.stat_result]] = []

    def walk(self) -> int | str:
        """Return the descriptor of the folder at the end, or why the path to it is not trusted."""
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
            error.filename = shown  # the call itself knows only the last name
            raise
        self._shown = shown
        return found

    def _create(self, name: str, at: int) -> None:
        try:
            syscalls.mkdir(name, self._make or 0, at)
        except FileExistsError:
            return
        if self._trust == "group" and not any(self._pending):
            # A umask of 022 must not keep the other members out of a folder that they share.
            share_folder(name, at, self._make or 0, None)

    def _follow(self, name: str, at: int) -> int | str:
        """Continue at the target of a symbolic link; return the descriptor to continue from."""
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
        """Return why the folder in which the next name is looked up is not trusted, or None."""
        if self._trust == "signed":
            return None
        status = syscalls.fstat(at)
        if not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and is_ours(status.st_uid):
            return None  # the usual case
        path = self._shown or "/"
        fault = _check_parent(path, status, at, None)
        if fault is not None and self._trust == "group":
            self._others.append((path, status))
            return None
        return fault

    def fault_for(self, group: int) -> str | None:
        """Return why a folder on the path is not trusted although this group is, or None."""
        for path, status in self._others:
            fault = _check_parent(path, status, None, group)
            if fault is not None:
                return fault
        return None


def _check_parent(
    path: str, status: os.stat_result, at: int | None, group: int | None
) -> str | None:
    """Return who could replace a file in this folder, or None. Members of `group` are trusted."""
    mode, uid, gid = status.st_mode, status.st_uid, status.st_gid
    if not is_ours(uid) and not _is_member(uid, group):
        fault = _foreign(uid) if group is None else _not_a_member(uid, group)
        remedy = _to_own(path, status)
    elif mode & stat.S_ISVTX:
        return None  # in a folder with the sticky bit, only a file's owner can replace the file
    elif mode & stat.S_IWOTH:
        fault = "everybody can write it, and it has no sticky bit"
        remedy = f"chmod +t {quote_path(path)}, {_OTHER_FOLDER}"
    elif mode & stat.S_IWGRP and not (gid == group and gid != unmapped_id("gid")):
        if _is_mine_alone(gid, at):
            return None
        fault = f"its group {gid} can write it, and it has no sticky bit"
        remedy = f"chmod +t {quote_path(path)}, {_OTHER_FOLDER}"
    else:
        return None
    return (
        f"{path} is not trusted: {fault} (mode {stat.S_IMODE(mode):04o}, owned by uid {uid}), so "
        f"the cache under it can be replaced. Do: {remedy}"
    )


def _is_mine_alone(group: int, at: int | None) -> bool:
    """Tell whether the group bits of a folder's mode let in nobody but this user and root."""
    from npugx_cache.store.io.accounts import is_mine_alone

    if at is None or group == unmapped_id("gid"):
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
    """Let the group use a file or folder that this process has just made. Best effort."""
    try:
        status = syscalls.fstat(fd)
        if group is not None and status.st_gid != group:
            syscalls.set_group(fd, group)
        syscalls.set_mode(fd, status.st_mode & (stat.S_ISGID | stat.S_ISVTX) | mode)
    except OSError:
        pass  # this process is not in the group: the file keeps its group and mode


def quote_path(path: str) -> str:
    import shlex

    return shlex.quote(path)
