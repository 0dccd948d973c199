"""Relocation, other users, real kills by strace, and power cuts where the machine allows them."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess

import pytest

from npugx_cache.config import Settings
from npugx_cache.store import FolderStore, open_folder

pytestmark = pytest.mark.thorough

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.mark.parametrize("way", ["mv", "cp -a", "tar", "bind mount read-only"])
def test_a_relocated_store_hits_for_every_entry(opening, draft, place, way):
    store = opening()
    keys = [f"{n:064x}" for n in range(20)]
    for key in keys:
        store.publish(draft(key=key, cost_seconds=0.0))
    source, target = store.root, place / "elsewhere" / "cache"
    target.parent.mkdir(mode=0o700)
    mounted = False
    if way == "mv":
        shutil.move(source, target)
    elif way == "cp -a":
        subprocess.run(["cp", "-a", source, target], check=True)
    elif way == "tar":
        target.mkdir(mode=0o700)
        piped = f"tar -C {source} -cf - . | tar -C {target} -xpf -"
        subprocess.run(["sh", "-c", piped], check=True)
    else:
        target.mkdir(mode=0o700)
        done = subprocess.run(["mount", "--bind", source, target], check=False, capture_output=True)
        if done.returncode:
            pytest.skip(f"can't bind-mount: {done.stderr.decode().strip()}")
        mounted = True
        subprocess.run(["mount", "-o", "remount,bind,ro", target], check=True)
    try:
        moved = open_folder(Settings(cache_dir=target))
        assert isinstance(moved, FolderStore), moved
        for key in keys:
            (manifest,) = moved.candidates(key).manifests
            assert moved.read(manifest, ["program"])["program"] == b"forward" * 400
    finally:
        moved = None  # an open store keeps its file system busy
        if mounted:
            subprocess.run(["umount", target], check=True)


STRANGER = """if True:
    import os, sys
    from pathlib import Path
    from npugx_cache.config import Settings
    from npugx_cache.store import *
    from npugx_cache.store import Draft, PrunePolicy
    import diskcache
    import filelock
    import platformdirs
    import npugx_cache.store.content.lock
    import npugx_cache.store.upkeep.prune
    import npugx_cache.store.content.publish
    import npugx_cache.store.content.blobs
    import npugx_cache.store.upkeep.sweep
    import npugx_cache.store.upkeep.limits
    import npugx_cache.store.upkeep.usage
    import npugx_cache.store.content.entries
    import npugx_cache.store.upkeep.index
    import npugx_cache.store.io.filesystem
    import npugx_cache.store.io.syscalls
    import shlex
    import ctypes, sqlite3  # the interpreter may be closed to the other user
    uid, gid = int(sys.argv[2]), int(sys.argv[3])
    os.umask(0o002)
    os.setgroups([]); os.setgid(gid); os.setuid(uid)
    store = open_store(Settings(cache_dir=Path(sys.argv[1]), trust=sys.argv[4]))
    if not hasattr(store, "candidates"):
        print(store.reason); raise SystemExit
    print("opened")
"""


@as_root
def test_a_stranger_and_a_closed_folder_are_clean_answers(opening, draft, place, python):
    place.chmod(0o755)
    opening().publish(draft())
    out, err = python(STRANGER, place / "cache", 23456, 54321, "private", "cd" * 32).communicate(
        timeout=60
    )
    assert err == ""
    assert "uid 0" in out or "EACCES" in out


READER = """if True:
    import sys
    from pathlib import Path
    from npugx_cache.config import Settings
    from npugx_cache.store import open_store
    store = open_store(Settings(cache_dir=Path(sys.argv[1]), mode=sys.argv[2]))
    assert store.readonly is not None
    for number in range(3):
        manifest, = store.candidates("ab" * 32).manifests
        assert store.read(manifest, ["program"])["program"] == b"forward" * 400
        store.record_hit(manifest)
    store.flush()
"""
# Each changes a file system if it is given a path of it.
CHANGING = (
    "mkdir,mkdirat,rmdir,unlink,unlinkat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,"
    "chmod,fchmodat,chown,lchown,fchownat,utime,utimes,utimensat,truncate,mknod,mknodat,creat"
)


@pytest.mark.parametrize("way", ["readonly mode", "read-only mount"])
def test_a_hit_in_a_read_only_folder_tries_to_change_nothing(opening, draft, place, python, way):
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace here")
    store = opening()
    store.publish(draft())
    root = store.root
    if way == "read-only mount":
        root = place / "mounted"
        root.mkdir(mode=0o700)
        for command in (["--bind", store.root, root], ["-o", "remount,bind,ro", root]):
            done = subprocess.run(["mount", *command], check=False, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"can't bind-mount: {done.stderr.strip()}")
    seen = place / "calls"
    before = (strace, "-f", "-y", "-qq", "-o", seen, "-e", f"trace=open,openat,{CHANGING}")
    mode = "readonly" if way == "readonly mode" else "on"
    try:
        process = python(READER, root, mode, before=tuple(map(str, before)))
        _, err = process.communicate(timeout=120)
    finally:
        if root != store.root:
            subprocess.run(["umount", root], check=True)
    if "ptrace" in err or "attach" in err:
        pytest.skip(f"strace may not trace here: {err.strip()[:200]}")
    assert (process.returncode, err) == (0, "")
    calls = [line for line in seen.read_text().splitlines() if f"<{root}" in line]
    assert len(calls) > 4
    harmless = [c for c in calls if " open" in c and "O_RDONLY" in c and "O_CREAT" not in c]
    assert calls == harmless


PUBLISHER = """if True:
    import sys
    from pathlib import Path
    from npugx_cache.config import Settings
    from npugx_cache.store import Draft, open_store
    store = open_store(Settings(cache_dir=Path(sys.argv[1])))
    store.publish(Draft(key="ab" * 32, identity="b" * 64, kind="graph", cost_seconds=5.0,
                        factors=(), about={}, blobs={"x": b"x" * 70000, "y": b"y"}))
"""


@pytest.mark.parametrize(
    ("call", "number"),
    [("rename,renameat,renameat2", n) for n in (1, 2, 3)] + [("fsync", n) for n in (1, 3, 5, 7)],
)
def test_killed_by_the_kernel_inside_a_system_call(opening, draft, python, place, call, number):
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace here")
    inject = f"inject={call}:signal=KILL:when={number}"
    process = python(
        PUBLISHER, place / "cache", before=(strace, "-qq", "-o", "/dev/null", "-e", inject)
    )
    _, err = process.communicate(timeout=120)
    if "ptrace" in err or "attach" in err:
        pytest.skip(f"strace may not trace here: {err.strip()[:200]}")
    assert process.returncode != 0
    store = opening()
    given = draft(blobs={"x": b"x" * 70000, "y": b"y"})
    for manifest in store.candidates(given.key).manifests:
        assert store.read(manifest, given.blobs) == given.blobs
    assert len(list((store.root / "v1/tmp").iterdir())) <= 1
    store.publish(given)
    found = [store.read(m, given.blobs) for m in store.candidates(given.key).manifests]
    assert given.blobs in found


@pytest.fixture
def disk(tmp_path):
    """A real ext4 on a loop device, which an ioctl can cut the power of."""
    image, mount = tmp_path / "disk.img", tmp_path / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    for command in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, mount]):
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip(f"no {command[0]} here")
        if done.returncode:
            pytest.skip(f"{command[0]}: {done.stderr.strip()[:200]}")
    yield image, mount
    subprocess.run(["umount", "-l", mount], check=False, capture_output=True)


@as_root
def test_after_a_power_cut_every_acknowledged_durable_entry_is_there(disk, draft):
    image, mount = disk
    (mount / "cache").mkdir(mode=0o700)
    store = open_folder(Settings(cache_dir=mount / "cache"))
    contents = {}
    for number in range(40):
        # Every other one is durable and names a blob that a hasty publisher has left unsynced.
        blobs = {"x": b"%d" % (number // 2)}
        if number == 1:
            blobs |= {f"b{n}": b"%d" % n * 500 for n in range(40)}  # synced all at once
        contents[number] = blobs
        cost = 5.0 if number % 2 else 0.0
        store.publish(draft(key=f"{number:064x}", cost_seconds=cost, blobs=blobs))
    fd = os.open(mount, os.O_RDONLY)
    try:
        # EXT4_IOC_SHUTDOWN, without flushing the log.
        fcntl.ioctl(fd, 0x8004587D, (2).to_bytes(4, "little"))
    except OSError as error:
        pytest.skip(f"this file system can't be shut down: {error}")
    finally:
        os.close(fd)
    store = None
    subprocess.run(["umount", "-l", mount], check=True)
    # A copy: whatever still holds the file system that was cut off (another test's namespace does)
    # would have `mount` find that one again by its image.
    after = image.with_suffix(".after")
    shutil.copyfile(image, after)
    done = subprocess.run(["mount", "-o", "loop", after, mount], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    store = open_folder(Settings(cache_dir=mount / "cache"))
    lost = torn = 0
    for number, right in contents.items():
        found = store.candidates(f"{number:064x}").manifests
        answers = [store.read(manifest, right) for manifest in found]
        lost += number % 2 and right not in answers
        torn += any(isinstance(a, dict) and a != right for a in answers)
    assert (lost, torn) == (0, 0)
