"""Several users and groups in one test: `python -c "PEOPLE + test" PLACE`, as root.

The accounts are those of a mount namespace of its own, so that the machine's are not touched.
Everything is imported before another user acts, who may not be allowed to read the interpreter.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import logging
import os
import pkgutil
import pwd
import shlex  # noqa: F401
import subprocess
import sys
import traceback
from pathlib import Path

import diskcache  # noqa: F401
import filelock  # noqa: F401
import platformdirs  # noqa: F401

import npugx_cache.store
from npugx_cache.config import Settings
from npugx_cache.store import Draft, open_store

for _module in pkgutil.walk_packages(npugx_cache.store.__path__, "npugx_cache.store."):
    importlib.import_module(_module.name)

PLACE = Path(sys.argv[1])
# Each has a private group, as distributions make them; carl's primary group is the team.
UIDS = {"ann": 5001, "bob": 5002, "eve": 5003}
TEAM, CARL = 6001, 5004
KEY = "ab" * 32
_NEW_USER_NAMESPACE, _SET_DUMPABLE = 0x10000000, 4


def accounts(team="ann,bob", more_users="", more_groups="", ann="", services="files"):
    """Say who there is and who is in the team, from now on."""
    users = "".join(f"{n}:x:{uid}:{uid}::/:/bin/sh\n" for n, uid in UIDS.items())
    users += f"root:x:0:0::/root:/bin/sh\ncarl:x:{CARL}:{TEAM}::/:/bin/sh\n{more_users}"
    groups = "".join(f"{n}:x:{uid}:{ann if n == 'ann' else ''}\n" for n, uid in UIDS.items())
    groups += f"root:x:0:\nteam:x:{TEAM}:{team}\n{more_groups}"
    for name, text in (
        ("passwd", users),
        ("group", groups),
        ("nsswitch.conf", f"passwd: {services}\ngroup: {services}\n"),
    ):
        (PLACE / name).write_text(text)


def _mount_accounts():
    accounts()
    for name in ("passwd", "group", "nsswitch.conf"):
        subprocess.run(["mount", "--bind", PLACE / name, f"/etc/{name}"], check=True)


def folder(path, owner=0, group=None, mode=0o755):
    """Make a folder of somebody's."""
    path = PLACE / path
    path.mkdir()
    uid = UIDS.get(owner, owner)
    os.chown(path, uid, uid if group is None else group)
    path.chmod(mode)
    return path


def acting(name, umask=0o022):
    """Let a function be called in a process of that user; what it returns comes back as JSON."""

    def decorate(function):
        @functools.wraps(function)
        def call(*args):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    account = pwd.getpwnam(name)
                    os.initgroups(name, account.pw_gid)
                    os.setgid(account.pw_gid)
                    os.setuid(account.pw_uid)
                    os.umask(umask)
                    answer = function(*args)
                except BaseException:
                    answer = traceback.format_exc()
                os.write(write, json.dumps(answer).encode())
                os._exit(0)
            os.close(write)
            with os.fdopen(read) as said:
                answer = json.loads(said.read())
            assert os.waitpid(child, 0)[1] == 0
            return answer

        return call

    return decorate


def opened(name, path, trust="private"):
    """What a process of that user is told about a folder: '' where it can be used."""
    return acting(name)(lambda: getattr(open_store(settings(path, trust)), "reason", ""))()


def settings(path, trust="private"):
    return Settings(cache_dir=Path(path), trust=trust)


def draft(key=KEY, text=b"forward", cost=0.1):
    return Draft(
        key=key,
        identity="1d" * 16,
        kind="graph",
        cost_seconds=cost,
        factors=(),
        about={"function": "f"},
        blobs={"program": text},
    )


def publish(name, path, umask=0o022, key=KEY, text=b"forward", trust="group"):
    """What that user's publish answers, and what was logged at WARNING."""

    def work():
        told = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: told.append(record.getMessage())
        logging.getLogger("npugx_cache").addHandler(handler)
        answer = open_store(settings(path, trust))
        if hasattr(answer, "publish"):
            answer = answer.publish(draft(key, text))
        return [getattr(answer, "reason", ""), told]

    return acting(name, umask)(work)()


def programs(name, path, trust="group", key=KEY):
    """The programs that a worker of that user would run, and what it is told else."""

    def work():
        store = open_store(settings(path, trust))
        if hasattr(store, "reason"):
            return [[], store.reason]
        found = store.candidates(key)
        read = [store.read(manifest, ["program"]) for manifest in found.manifests]
        texts = [data["program"].decode() if isinstance(data, dict) else data[0] for data in read]
        return [texts, found.missing_reason]

    return acting(name)(work)()


def enter_user_namespace(shown_uid, shown_gid):
    """Go where this user and group are known under these ids, and no others are."""
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_DUMPABLE, 1)  # or /proc/self is root's
    if libc.unshare(_NEW_USER_NAMESPACE):
        return os.strerror(ctypes.get_errno())
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{shown_uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{shown_gid} {gid} 1")
    return ""


_mount_accounts()
