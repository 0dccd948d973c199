"""What strangers can put into a folder costs a lookup little and stops nobody."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from npugx_cache.config import Settings
from npugx_cache.store import Store, open_store
from npugx_cache.store.content import entries, verified
from npugx_cache.store.format.signing import FORMAT
from npugx_cache.store.io import syscalls

REPOSITORY = Path(__file__).parents[2]
KEY = f"{0:064x}"

EVERYTHING = """if True:
    import os, sys, io
    from pathlib import Path
    from npugx_cache.config import Settings
    from npugx_cache.store import Draft, PrunePolicy, open_store
    from npugx_cache.store.tools import bundle
    from npugx_cache.store.tools.audit import verify
    root, key_file = map(Path, sys.argv[1:3])
    store = open_store(Settings(
        cache_dir=root, trust="signed", key_file=key_file, max_size=1 << 30))
    draft = Draft(key="0" * 64, identity="1d" * 16, kind="graph", cost_seconds=5.0, factors=(),
                  about={"function": "f"}, blobs={"program": b"p" * 1000})
    for _ in range(2):
        for manifest in store.candidates(draft.key).manifests:
            store.read(manifest, ["program"])
            store.read_record(manifest.entry)
            store.record_hit(manifest)
        with store.lock(draft.key, wait=0) as answer:
            manifest = store.publish(draft).manifest
        store.write_record(manifest.entry, {"a": 1})
        store.flush()
    store.siblings(draft.identity)
    list(store.listing())
    store.overview()
    bundle.pack(store.folder, [(manifest.key, manifest.entry)], io.BytesIO())
    verify(store.folder, repair=True)
    store.prune(PrunePolicy(older_than=1e9))
    store.settle()
    print("done", len(store.candidates(draft.key).manifests))
"""


def fifo(path):
    os.mkfifo(path)
    path.chmod(0o666)


def endless_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError as error:
        pytest.skip(f"no device can be made here: {error}")


def socket_file(path):
    import socket

    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name[:90])
    finally:
        os.chdir(here)


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "key"
    path.write_text("5a" * 32)
    path.chmod(0o600)
    return path


@pytest.fixture
def run(root, key_file):
    """What a worker says that does all that can be done with a store, in a minute at most."""

    def running():
        done = subprocess.run(
            [sys.executable, "-c", EVERYTHING, root, key_file],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout.strip()

    return running


@pytest.mark.parametrize("plant", [fifo, endless_device, socket_file])
def test_no_file_that_is_none_stops_a_worker_wherever_it_lies(root, run, plant):
    assert run() == "done 1"
    files = [path for path in root.rglob("*") if path.is_file()]
    kinds = {path.relative_to(root).parts[1:2] or path.name for path in files}
    assert kinds >= {("ac",), ("cas",), ("fn",), ("rec",), ("size",), ("locks",), "CACHEDIR.TAG"}
    for path in files:
        path.unlink()
        plant(path)
    assert run().startswith("done")


@pytest.mark.parametrize("name", ["v1/size", f"v1/locks/{KEY}.lock"])
@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_no_file_of_the_users_is_written_through_a_link(root, run, tmp_path, name, link):
    assert run() == "done 1"
    mine = tmp_path / "mine"
    mine.write_text("notes of mine")
    before = mine.stat()
    (root / name).unlink()
    link(mine, root / name)
    before = mine.stat()
    assert run() == "done 1"
    assert mine.read_text() == "notes of mine"
    assert mine.stat().st_mtime_ns == before.st_mtime_ns


def sparse(path, size):
    """A file of holes that has a right digest, as unsigned manifests have."""
    with path.open("wb") as file:
        file.truncate(size - 32)
        file.seek(size - 32)
        file.write(hashlib.sha256(FORMAT + bytes(size - 32)).digest())


class Reads:
    """Counts what this thread reads, because a store of an earlier test may flush beside it."""

    def __init__(self, monkeypatch):
        self.bytes = self.files = 0
        read_all, open_read = syscalls.read_all, syscalls.open_read
        counted = threading.get_ident()

        def reading(fd, size):
            data = read_all(fd, size)
            if threading.get_ident() == counted:
                self.bytes += len(data)
            return data

        def opening(*args):
            if threading.get_ident() == counted:
                self.files += 1
            return open_read(*args)

        monkeypatch.setattr(syscalls, "read_all", reading)
        monkeypatch.setattr(syscalls, "open_read", opening)

    def of(self, work):
        self.bytes = self.files = 0
        answer = work()
        return answer, self.bytes, self.files


@pytest.fixture
def signed(root, key_file, publish):
    store = open_store(Settings(cache_dir=root, trust="signed", key_file=key_file))
    assert isinstance(store, Store), store
    return store, publish(store)


def digests(count):
    """Names of which the honest entry's is not the first."""
    return [hashlib.sha256(b"%d" % number).hexdigest() for number in range(count)]


def test_files_of_holes_are_read_within_a_bound_and_once(signed, monkeypatch):
    monkeypatch.setattr(verified, "_RACY_NS", 0)
    size = 4 << 20
    store, manifest = signed
    folder = store.root / "v1/ac/00" / KEY
    names = digests(40)
    for name in names:
        sparse(folder / name, size)
    reads = Reads(monkeypatch)
    total = 0
    for _ in range(10):
        found, count, _ = reads.of(lambda: store.candidates(KEY))
        assert count <= 64 << 20
        total += count
    assert len(found.refused) == 40
    assert total < 41 * size
    assert count < size  # in the end what was refused is read no more
    assert found.manifests == (manifest,)
    sparse(folder / names[0], size - 1)
    _, count, _ = reads.of(lambda: store.candidates(KEY))
    assert size - 1 <= count < 2 * size  # what has changed is


def test_a_damaged_blob_that_can_not_be_put_away_is_hashed_once(
    store, publish, open_at, monkeypatch
):
    monkeypatch.setattr(verified, "_RACY_NS", 0)
    manifest = publish(store, blobs={"a": os.urandom(100_000)})
    path = next((store.root / "v1/cas").glob("*/*"))
    path.write_bytes(bytes(100_000))
    reader = open_at(mode="readonly")
    reads = Reads(monkeypatch)
    first, count, _ = reads.of(lambda: reader.read(manifest, ["a"]))
    assert count >= 100_000
    second, count, _ = reads.of(lambda: reader.read(manifest, ["a"]))
    assert count == 0
    assert "digest mismatch" in first.reason
    assert second == first


def test_of_very_many_names_under_a_key_some_are_opened(signed, monkeypatch):
    store, _ = signed
    folder = store.root / "v1/ac/00" / KEY
    for name in digests(5000):
        (folder / name).touch()
    reads = Reads(monkeypatch)
    found, _, files = reads.of(lambda: store.candidates(KEY))
    assert files <= 1025
    assert any("more than 1024 entries" in refused.reason for refused in found.refused)


def test_a_key_of_as_many_entries_as_anybody_has_is_read_whole(store, draft):
    for number in range(300):
        store.publish(draft(about={"shape": number}))
    found = store.candidates(KEY)
    assert len(found.manifests) == 300
    assert found.refused == ()
    assert entries.MAX_ENTRIES > 600
