"""Records beside entries: replaced as a whole, verified, and never in an entry's way."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from npugx_cache.store import PrunePolicy

ENTRY, OTHER = "ab" * 32, "cd" * 32


def path_of(root, entry=ENTRY):
    return root / "v1" / "rec" / entry[:2] / entry


def test_the_last_record_is_read(store, root):
    assert store.read_record(ENTRY) is None
    for record in ([1, "x"], {"graphs": []}, None, [2.5]):
        assert store.write_record(ENTRY, record) is None
        assert store.read_record(ENTRY) == record
    assert store.read_record(OTHER) is None
    assert path_of(root).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("entry", ["", "../../x", "AB" * 32, "ab" * 31])
def test_only_entries_have_records(store, entry):
    assert store.read_record(entry) is None
    assert store.write_record(entry, [1]) == "not an entry id"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:5] + bytes([data[5] ^ 1]) + data[6:],
        lambda data: bytes(2 << 20),
    ],
    ids=["empty", "cut", "changed", "huge"],
)
def test_a_damaged_record_is_none_and_the_next_one_takes_its_place(store, root, spoil):
    store.write_record(ENTRY, [1])
    path = path_of(root)
    path.write_bytes(spoil(path.read_bytes()))
    assert store.read_record(ENTRY) is None
    assert store.write_record(ENTRY, [2]) is None
    assert store.read_record(ENTRY) == [2]


def test_the_record_of_another_entry_is_none(store, root):
    store.write_record(ENTRY, [1])
    path_of(root, OTHER).parent.mkdir()
    path_of(root).rename(path_of(root, OTHER))
    assert store.read_record(OTHER) is None


def test_what_others_can_write_is_not_read(store, root):
    store.write_record(ENTRY, [1])
    path_of(root).chmod(0o666)
    assert store.read_record(ENTRY) is None
    path_of(root).chmod(0o600)
    path_of(root).parent.chmod(0o777)
    assert store.read_record(ENTRY) is None
    assert "not trusted" in store.write_record(ENTRY, [2])


def test_a_signed_folder_takes_signed_records_only(open_at, root, tmp_path):
    from npugx_cache.store.format.signing import new_secret

    keys = [tmp_path / "one", tmp_path / "two"]
    for key in keys:
        key.write_text(new_secret())
        key.chmod(0o600)
    first, second = (open_at(key_file=key, trust="signed") for key in keys)
    assert first.write_record(ENTRY, [1]) is None
    assert first.read_record(ENTRY) == [1]
    assert second.read_record(ENTRY) is None
    assert path_of(root).exists(), "another team's record stays"


def test_what_is_too_long_is_not_written(store):
    assert "bytes" in store.write_record(ENTRY, ["x" * (2 << 20)])
    assert store.read_record(ENTRY) is None


def test_a_readonly_store_writes_none(store, open_at):
    store.write_record(ENTRY, [1])
    reader = open_at(mode="readonly")
    assert reader.write_record(ENTRY, [2]) is not None
    assert reader.read_record(ENTRY) == [1]


def test_a_prune_removes_the_records_of_entries_that_are_gone(store, publish, root):
    manifest = publish(store)
    for entry in (manifest.entry, ENTRY, OTHER):
        store.write_record(entry, [1])
    before = time.time() - 2 * 86400
    for entry in (manifest.entry, ENTRY):
        os.utime(path_of(root, entry), (before, before))
    store.prune(PrunePolicy())
    assert store.read_record(manifest.entry) == [1]
    assert store.read_record(ENTRY) is None
    assert store.read_record(OTHER) == [1], "a young one may be of an entry that is coming"


WRITER = """
import sys
from pathlib import Path
from npugx_cache.config import Settings
from npugx_cache.store import open_store
store = open_store(Settings(cache_dir=Path(sys.argv[1])))
for number in range(200):
    assert store.write_record(sys.argv[2], [int(sys.argv[3]), "x" * number]) is None
    assert isinstance(store.read_record(sys.argv[2]), list)
"""


def test_several_writers_leave_one_whole_record(store, root, python):
    workers = [python(WRITER, root, ENTRY, number) for number in range(3)]
    for worker in workers:
        out, err = worker.communicate(timeout=60)
        assert (worker.returncode, out, err) == (0, "", "")
    number, text = store.read_record(ENTRY)
    assert number in range(3)
    assert text == "x" * 199
    assert [each.name for each in Path(root, "v1", "rec").rglob("*") if each.is_file()] == [ENTRY]
