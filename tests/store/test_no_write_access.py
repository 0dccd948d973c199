"""Read-only folders, full disks, lost permissions: hits go on, publishing says why not."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from npugx_cache.config import Settings
from npugx_cache.store import (
    Manifest,
    NotLocked,
    NotStored,
    PrunePolicy,
    Published,
    Unusable,
    open_store,
)


def snapshot(root):
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in root.rglob("*")
    } | {str(root): (root.lstat().st_mtime_ns, 0)}


def test_readonly_mode_hits_and_never_writes(store, publish, open_at, state_home, draft):
    manifest = publish(store)
    blob = next((store.root / "v1/cas").rglob("?" * 64))
    blob.write_bytes(bytes(blob.stat().st_size))
    before = snapshot(store.root)
    reader = open_at(mode="readonly")
    assert reader.candidates(manifest.key).manifests == (manifest,)
    reader.read(manifest, ["program", "text"])
    reader.record_hit(manifest)
    reader.flush()
    reader.quarantine(manifest, "any")
    assert isinstance(reader.publish(draft(5)), NotStored)
    with reader.lock("ab" * 16, wait=1) as answer:
        assert isinstance(answer, NotLocked)
        assert "read-only" in answer.reason
    assert reader.prune(PrunePolicy(everything=True)).stopped is not None
    assert snapshot(store.root) == before
    assert not state_home.exists()


def test_readonly_mode_does_not_create_a_missing_folder(tmp_path):
    answer = open_store(Settings(cache_dir=tmp_path / "none", mode="readonly"))
    assert isinstance(answer, Unusable)
    assert "does not exist" in answer.reason
    assert not (tmp_path / "none").exists()


UNPRIVILEGED = """if True:
    import os, sys
    from pathlib import Path
    from npugx_cache.config import Settings
    from npugx_cache.store import Draft, Locked, PrunePolicy, open_store
    from npugx_cache.store.content import blobs, publish
    import diskcache, filelock, platformdirs  # the interpreter may be closed to the other user
    if os.geteuid() == 0:
        os.setgid(65534); os.setuid(65534)
    store = open_store(Settings(cache_dir=Path(sys.argv[1]), trust='group'))
    print(type(store).__name__, getattr(store, 'reason', ''))
    manifest, = store.candidates(sys.argv[2]).manifests
    print(sorted(store.read(manifest, ['program', 'text'])))
    store.record_hit(manifest); store.flush()
    print(store.publish(Draft(key='a' * 64, identity='b' * 64, kind='graph', cost_seconds=1,
                              factors=(), about={}, blobs={})))
    with store.lock('ab' * 16, wait=1) as answer:
        print(answer)
    print(store.readonly)
"""


def test_a_folder_without_write_permission_serves_hits_and_says_why_nothing_is_stored(
    publish, python
):
    # pytest's own folders are closed to others, so this one lies beside them.
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "cache"
        root.parent.chmod(0o755)
        store = open_store(Settings(cache_dir=root, trust="group"))
        manifest = publish(store)
        subprocess.run(["chmod", "-R", "a+rX,a-w", root], check=True)
        process = python(UNPRIVILEGED, root, manifest.key)
        out, err = process.communicate(timeout=30)
        subprocess.run(["chmod", "-R", "u+w", root], check=True)
    assert err == ""
    lines = out.splitlines()
    assert lines[0].strip() == "FolderStore"
    assert lines[1] == "['program', 'text']"
    assert lines[2].startswith("NotStored(reason='read-only")
    assert lines[3].startswith("NotLocked")
    assert "not writable" in lines[4]


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "tmpfs", str(place)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"can't mount a small tmpfs: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def noise(number, size=100_000):
    return {"blob": (b"%d" % number) + os.urandom(size)}


def test_on_a_full_disk_older_entries_make_room(small_disk, open_at, publish):
    store = open_at(small_disk / "cache")
    for number in range(12):
        manifest = publish(store, number, blobs=noise(number))
        assert len(store.read(manifest, ["blob"])["blob"]) > 100_000
    entries = [item.manifest.key for item in store.listing()]
    assert f"{11:064x}" in entries
    assert f"{0:064x}" not in entries


def test_on_a_disk_that_strangers_filled_nothing_is_stored_and_nothing_is_left(
    small_disk, open_at, draft
):
    store = open_at(small_disk / "cache")
    with pytest.raises(OSError, match="No space"), (small_disk / "big").open("wb") as file:
        file.write(bytes(1 << 20))
    answer = store.publish(draft(blobs=noise(1)))
    assert isinstance(answer, NotStored)
    assert "ENOSPC" in answer.reason
    assert str(small_disk) not in answer.reason
    assert not [
        path for path in store.root.rglob("*") if path.is_file() and path.stat().st_size > 300
    ]
    (small_disk / "big").unlink()
    assert isinstance(store.publish(draft(blobs=noise(1))), Published)


def test_an_entry_larger_than_the_disk_evicts_nobody(small_disk, open_at, publish, draft):
    store = open_at(small_disk / "cache")
    kept = publish(store, 1, blobs=noise(1))
    answer = store.publish(draft(2, blobs=noise(2, 2_000_000)))
    assert isinstance(answer, NotStored)
    assert store.candidates(kept.key).manifests == (kept,)


def test_a_read_only_mount_serves_hits(small_disk, open_at, publish, draft):
    manifest = publish(open_at(small_disk / "cache"))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    store = open_at(small_disk / "cache")
    assert store.readonly is not None
    assert isinstance(store.candidates(manifest.key).manifests[0], Manifest)
    assert isinstance(store.read(manifest, ["program"]), dict)
    assert isinstance(store.publish(draft(3)), NotStored)


def test_a_store_that_becomes_read_only_while_open_still_serves(
    small_disk, open_at, publish, draft
):
    store = open_at(small_disk / "cache")
    manifest = publish(store)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert isinstance(store.read(manifest, ["program"]), dict)
    answer = store.publish(draft(3))
    assert isinstance(answer, NotStored)
    assert "EROFS" in answer.reason
    with store.lock("ab" * 16, wait=1) as locked:
        assert isinstance(locked, NotLocked)
    assert store.prune(PrunePolicy(everything=True)).stopped is not None
