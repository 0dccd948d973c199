from __future__ import annotations

import os
import time

import pytest

from npugx_cache.store import Listed, PrunePolicy
from npugx_cache.store.upkeep import index
from npugx_cache.store.upkeep.index import Columns, pack_rows


@pytest.fixture
def aged(store, publish):
    """A store whose last change is long ago, so that an index of it may be kept."""
    for number in range(5):
        publish(store, number, key=f"{number % 2:02x}" + f"{number:062x}")
    age(store)
    return store


def age(store, seconds=60):
    stamp = time.time() - seconds
    for part in ("ac", "cas"):
        for shard in (store.root / "v1" / part).iterdir():
            os.utime(shard, (stamp, stamp))


def listed(store):
    """By the index, checked against a listing that knows of none."""
    overview, _ = store.overview()
    rows = overview.columns.rows()
    slow = [item for item in store.listing() if isinstance(item, Listed)]
    assert {row.entry for row in rows} == {item.manifest.entry for item in slow}
    for item in slow:
        (row,) = [row for row in rows if row.entry == item.manifest.entry]
        assert (row.key, row.identity, row.kind) == (
            item.manifest.key,
            item.manifest.identity,
            item.manifest.kind,
        )
        assert row.stored_bytes == item.stored_bytes
        assert row.function == item.manifest.about["function"]
    files = [
        path.stat()
        for part in ("ac", "cas")
        for path in (store.root / "v1" / part).rglob("*")
        if path.is_file()
    ]
    assert overview.size == sum(status.st_size for status in files)
    assert overview.disk_bytes == sum(status.st_blocks for status in files) * 512
    return rows


@pytest.fixture
def reads(monkeypatch):
    """Counts the manifests that the index reads."""
    from npugx_cache.store.upkeep import index

    read = []
    real = index.load
    monkeypatch.setattr(index, "load", lambda *args, **kw: read.append(args) or real(*args, **kw))
    return read


def test_the_second_listing_reads_no_manifest(aged, reads):
    assert len(listed(aged)) == 5
    assert len(reads) == 5
    assert len(listed(aged)) == 5
    assert len(reads) == 5


def test_a_publish_costs_reading_that_entry_alone(aged, reads, publish):
    listed(aged)
    del reads[:]
    publish(aged, 9, key="00" + "9" * 62)
    assert len(listed(aged)) == 6
    assert len(reads) == 1


def test_another_entry_under_an_old_key_shows(aged, reads, publish):
    listed(aged)
    publish(aged, 7, key=f"{0:064x}")
    assert len(listed(aged)) == 6


def test_evicted_and_quarantined_entries_are_gone(aged, publish):
    second = publish(aged, 7, key=f"{0:064x}")
    age(aged)
    listed(aged)
    aged.quarantine(second, "test")
    assert len(listed(aged)) == 5
    age(aged)
    listed(aged)
    aged.prune(PrunePolicy(max_size=0))
    assert listed(aged) == []


def test_a_change_just_before_the_scan_is_never_trusted(store, publish, reads, monkeypatch):
    monkeypatch.setattr(index, "RACY_NS", 3600 * 10**9)
    publish(store)
    listed(store)
    listed(store)
    assert len(reads) == 2


def test_a_freshened_entry_shows_its_last_use(aged, publish):
    manifest = next(iter(aged.listing())).manifest
    path = aged.root / "v1/ac" / manifest.key[:2] / manifest.key / manifest.entry
    os.utime(path, (1, 1))
    age(aged)
    listed(aged)
    aged.record_hit(manifest)
    aged.flush()
    (row,) = [row for row in listed(aged) if row.entry == manifest.entry]
    assert row.mtime > 2


@pytest.mark.parametrize("garbage", [b"", b"garbage" * 1000, bytes(8192)])
def test_a_damaged_or_deleted_index_is_rebuilt(aged, state_home, garbage):
    before = listed(aged)
    for path in state_home.rglob("index/*/cache.db"):
        path.unlink() if garbage == b"" else path.write_bytes(garbage)
    for _ in range(3):
        assert listed(aged) == before


def test_a_flipped_bit_anywhere_in_the_index_changes_no_answer(aged, state_home):
    before = listed(aged)
    (path,) = state_home.rglob("index/*/cache.db")
    data = path.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 60)):
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        path.write_bytes(flipped)
        for side in ("-wal", "-shm"):
            path.with_name(path.name + side).unlink(missing_ok=True)
        assert sorted(listed(aged)) == sorted(before)


def test_an_unusable_state_folder_costs_the_index_and_nothing_else(aged, state_home):
    state_home.mkdir(exist_ok=True)
    (state_home / "npugx_cache").write_text("a file")
    assert len(listed(aged)) == 5


def test_nothing_of_the_index_lies_in_the_shared_folder(aged, state_home):
    before = sorted(aged.root.rglob("*"))
    listed(aged)
    assert sorted(aged.root.rglob("*")) == before
    assert list(state_home.rglob("index/*/cache.db"))


def test_a_listing_under_another_trust_is_another_listing(aged, open_at, tmp_path):
    listed(aged)
    key = tmp_path / "key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    overview, _ = open_at(trust="signed", key_file=key).overview()
    assert overview.columns.rows() == []
    assert len(overview.refused) == 5


def test_columns_give_back_rows_whatever_the_texts(aged):
    rows = listed(aged)
    odd = [rows[0]._replace(function="a b\tc", key="ab" * 16, environment=""), *rows[1:]]
    columns = Columns()
    digests = [f"{number:064x}" for number in range(sum(row.blobs for row in rows))]
    columns.add(pack_rows(odd, digests))
    columns.add(pack_rows([], []))
    columns.add(pack_rows(rows, digests[::-1]))
    assert columns.rows() == odd + rows
    assert columns.count == 10
    assert [digest.hex() for digest in columns.digests()] == digests + digests[::-1]
