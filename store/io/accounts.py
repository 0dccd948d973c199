"""Tells which users are in a group now, by the user databases of this host. Unknown means no.

Used only for a file of another user, or for a folder that a group can write.
"""

from __future__ import annotations

import os
import re
import time

# A running worker trusts a user who leaves the group for at most this long.
_REMEMBERED_SECONDS = 60.0
_MAX_REMEMBERED = 4096
_NAME_SERVICES = "/etc/nsswitch.conf"
# Databases whose lists of users and groups are complete. Those of a directory service are not.
_COMPLETE = frozenset({"files", "systemd", "altfiles"})
_members: dict[tuple[int, int], tuple[bool, float]] = {}


def is_member(uid: int, group: int) -> bool:
    """Tell whether a user is in a group now; the user's primary group counts as well."""
    now = time.monotonic()
    known = _members.get((uid, group))
    if known is not None and now < known[1]:
        return known[0]
    if len(_members) >= _MAX_REMEMBERED:
        _members.clear()
    answer = group in _groups_of(uid)
    _members[uid, group] = answer, now + _REMEMBERED_SECONDS
    return answer


def _groups_of(uid: int) -> list[int]:
    import pwd

    try:
        account = pwd.getpwuid(uid)
        return os.getgrouplist(account.pw_name, account.pw_gid)
    except (KeyError, OSError):
        return []


def is_mine_alone(group: int) -> bool:
    """Tell whether only this process's user and root are in a group.

    The private groups of users are such groups. Distributions that give each user one set the umask
    to 002, so that this group can write the user's folders.
    """
    import grp
    import pwd

    me = os.geteuid()
    try:
        if not _lists_are_complete():
            return False
        members = {entry.pw_uid for entry in pwd.getpwall() if entry.pw_gid == group}
        for found in grp.getgrall():
            if found.gr_gid == group:
                members |= {pwd.getpwnam(name).pw_uid for name in found.gr_mem}
    except (KeyError, OSError, ValueError):
        return False
    if me not in members and group in {os.getegid(), *os.getgroups()}:
        return False  # this user is a member that is not in the lists: there may be more
    return bool(members) and members <= {me, 0}


def _lists_are_complete() -> bool:
    from npugx_cache.store.io import syscalls

    sources: dict[str, set[str]] = {}
    for line in syscalls.text_of(_NAME_SERVICES).splitlines():
        database, colon, rest = line.partition("#")[0].partition(":")
        if colon:
            sources[database.strip()] = set(re.sub(r"\[[^]]*\]", " ", rest).split())
    wanted = [sources.get("passwd"), sources.get("group"), sources.get("initgroups", {"files"})]
    return all(found and found <= _COMPLETE for found in wanted)
