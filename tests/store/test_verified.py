"""What is remembered as verified never outlives a change of the file."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

from npugx_cache.store import Miss
from npugx_cache.store.content import verified
from npugx_cache.store.io import syscalls


@pytest.fixture
def settled(monkeypatch):
    """Take files for old enough at once."""
    monkeypatch.setattr(verified, "_RACY_NS", 0)


@pytest.fixture
def given(draft):
    return draft(blobs={"a": os.urandom(3000)})


@pytest.fixture
def twice_read(store, given, settled):
    """A store that remembers the one entry in it."""
    manifest = store.publish(given).manifest
    for _ in range(2):
        assert store.candidates(given.key).manifests == (manifest,)
        assert store.read(manifest, ["a"]) == given.blobs
    a_tick(store.root)
    return manifest


def a_tick(folder):
    """Let the clock of the file system go on: what changes within one tick has one time.

    Nobody can set a ctime, so this ends when the file system gives a new one.
    """
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        before = os.fstat(file.fileno()).st_ctime_ns
        while os.fstat(file.fileno()).st_ctime_ns == before:
            os.utime(file.fileno())


def entries(store, given):
    """The ids of what the store has, remembered from now on."""
    found = {manifest.entry for manifest in store.candidates(given.key).manifests}
    a_tick(store.root)
    return found


def blob_path(store, manifest):
    digest = manifest.blobs[0].sha256
    return store.root / "v1/cas" / digest[:2] / digest


def entry_path(store, manifest):
    return store.root / "v1/ac" / manifest.key[:2] / manifest.key / manifest.entry


def test_what_is_remembered_is_used(store, given, twice_read):
    found = store.candidates(given.key).manifests
    assert found[0] is store.candidates(given.key).manifests[0]
    assert store._verified.blob(twice_read.blobs[0].sha256) is not None


@pytest.mark.parametrize("at", [0, 1500, 2999])
def test_a_byte_changed_in_place_with_its_time_put_back_is_noticed(store, twice_read, at):
    path = blob_path(store, twice_read)
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    answer = store.read(twice_read, ["a"])
    assert isinstance(answer, Miss)
    assert "digest mismatch" in answer.reason


def test_a_file_put_in_the_place_of_a_verified_one_is_verified(store, twice_read, tmp_path):
    path = blob_path(store, twice_read)
    other = tmp_path / "other"
    shutil.copy2(path, other)
    other.write_bytes(bytes(3000))
    shutil.copystat(path, other)
    other.replace(path)
    assert isinstance(store.read(twice_read, ["a"]), Miss)


def test_a_change_while_the_file_is_read_is_noticed(store, twice_read, monkeypatch):
    path = blob_path(store, twice_read)
    real = syscalls.read_all

    def changed_first(fd, size):
        path.write_bytes(bytes(3000))
        return real(fd, size)

    monkeypatch.setattr(syscalls, "read_all", changed_first)
    assert isinstance(store.read(twice_read, ["a"]), Miss)


def test_lost_trust_is_noticed(store, given, twice_read):
    entry_path(store, twice_read).chmod(0o666)
    assert "not trusted" in store.candidates(given.key).missing_reason
    entry_path(store, twice_read).chmod(0o600)
    assert entries(store, given) == {twice_read.entry}
    entry_path(store, twice_read).parent.chmod(0o777)
    assert "not trusted" in store.candidates(given.key).missing_reason


def test_a_changed_or_deleted_manifest_and_a_new_entry_are_noticed(
    store, given, twice_read, publish
):
    other = publish(store, about={"shape": 2})
    assert entries(store, given) == {twice_read.entry, other.entry}
    entry_path(store, other).unlink()
    assert entries(store, given) == {twice_read.entry}
    entry_path(store, twice_read).write_bytes(b"nonsense")
    assert entries(store, given) == set()
    shutil.rmtree(entry_path(store, twice_read).parent)
    assert store.candidates(given.key).missing_reason == "no entry under this key"


def test_the_likely_ones_are_those_in_memory_with_this_signature(store, publish, settled):
    one, two = (publish(store, about={"signature_id": each}) for each in ("1", "2"))
    assert store.likely(one.key, "1") == ()
    entries(store, one)
    assert store.likely(one.key, "1") == (one,)
    assert store.likely(one.key, "2") == (two,)
    assert store.likely(one.key, "3") == ()


@pytest.mark.parametrize("change", ["another entry", "nonsense in its place", "a set-up"])
def test_nothing_is_likely_after_a_change(store, publish, settled, change):
    one = publish(store, about={"signature_id": "1"})
    entries(store, one)
    if change == "nonsense in its place":
        entry_path(store, one).write_bytes(b"nonsense")
    else:
        publish(store, kind="set-up" if change == "a set-up" else "graph", about={"calls": "2"})
    assert store.likely(one.key, "1") == ()
    if change == "a set-up":
        entries(store, one)
        assert store.likely(one.key, "1") == ()


def test_a_young_file_is_not_remembered(store, given, monkeypatch):
    monkeypatch.setattr(verified, "_RACY_NS", 3600 * 10**9)
    manifest = store.publish(given).manifest
    store.read(manifest, ["a"])
    store.candidates(given.key)
    assert store._verified.blob(manifest.blobs[0].sha256) is None
    assert store._verified.key(given.key) is None


def test_on_a_network_file_system_nothing_is_remembered(store, given, settled, monkeypatch):
    monkeypatch.setattr(syscalls, "filesystem_magic", lambda _: 0x6969)
    manifest = store.publish(given).manifest
    store.read(manifest, ["a"])
    store.candidates(given.key)
    assert store._verified.blob(manifest.blobs[0].sha256) is None
    assert store._verified.key(given.key) is None


def test_blobs_that_strangers_may_write_are_verified_each_time(open_at, given, settled, tmp_path):
    key = tmp_path / "key"
    key.write_text("5a" * 32)
    key.chmod(0o600)
    store = open_at(trust="signed", key_file=key)
    manifest = store.publish(given).manifest
    store.read(manifest, ["a"])
    assert store._verified.blob(manifest.blobs[0].sha256) is None


def test_what_is_remembered_is_bounded(store, publish, settled, monkeypatch):
    monkeypatch.setattr(verified, "_MAX_KEYS", 3)
    monkeypatch.setattr(verified, "_MAX_BLOBS", 3)
    for number in range(9):
        manifest = publish(store, number)
        store.candidates(manifest.key)
        store.read(manifest, ["program", "text"])
    assert len(store._verified._keys) <= 3
    assert len(store._verified._blobs) <= 4


def test_a_refusal_is_told_again_in_the_same_words(store, publish, open_at, settled):
    manifest = publish(store)
    path = store.root / "v1/ac/00" / manifest.key / manifest.entry
    path.write_bytes(b"nonsense")
    a_tick(store.root)
    reader = open_at(mode="readonly")  # which can't move the file to quarantine
    first, again = (reader.candidates(manifest.key).refused for _ in range(2))
    assert first == again
    assert manifest.entry in first[0].reason
