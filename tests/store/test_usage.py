from __future__ import annotations

import os
import pickle
import sqlite3
import time

import pytest

from npugx_cache.store import Listed
from npugx_cache.store.plain_disk import PlainDisk


@pytest.fixture
def hits(store, publish):
    manifest = publish(store)

    def count(times: int) -> int:
        for _ in range(times):
            store.record_hit(manifest)
        store.flush()
        (item,) = store.listing()
        return item.hits

    return count


def database(state_home):
    (path,) = state_home.rglob("cache.db")
    return path


def test_hits_add_up_over_flushes_and_processes(hits, open_at):
    assert hits(0) == 0
    assert hits(3) == 3
    assert hits(2) == 5
    (item,) = open_at().listing()
    assert item.hits == 5


def test_counting_does_no_io_and_flush_writes_nothing_into_the_shared_folder(
    store, publish, state_home
):
    manifest = publish(store)
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    store.record_hit(manifest)
    assert not state_home.exists()
    store.flush()
    assert state_home.exists()
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == before


def test_flush_freshens_a_manifest_that_was_not_used_for_an_hour(store, publish):
    manifest = publish(store)
    path = store.root / "v1/ac/00" / manifest.key / manifest.entry
    for age, touched in ((1800, False), (7200, True)):
        stamp = time.time() - age
        os.utime(path, (stamp, stamp))
        store.record_hit(manifest)
        store.flush()
        assert (time.time() - path.stat().st_mtime < 60) is touched


def test_the_last_use_of_the_listing_is_the_last_hit(store, publish):
    manifest = publish(store)
    path = store.root / "v1/ac/00" / manifest.key / manifest.entry
    os.utime(path, (1000, time.time() - 100))
    store.record_hit(manifest)
    store.flush()
    (item,) = store.listing()
    assert isinstance(item, Listed)
    assert time.time() - item.last_used < 20


def test_hits_of_a_store_that_nobody_holds_any_more_are_flushed_at_exit(store, publish, python):
    manifest = publish(store)
    code = """if True:
        import gc, sys
        from pathlib import Path
        from npugx_cache.config import Settings
        from npugx_cache.store import open_store
        store = open_store(Settings(cache_dir=Path(sys.argv[1])))
        store.record_hit(store.candidates(sys.argv[2]).manifests[0])
        del store
        gc.collect()
    """
    _, err = python(code, store.root, manifest.key).communicate(timeout=30)
    assert err == ""
    assert [item.hits for item in store.listing()] == [1]


def test_hits_are_flushed_at_exit(store, publish, python):
    manifest = publish(store)
    code = """if True:
        import sys
        from pathlib import Path
        from npugx_cache.config import Settings
        from npugx_cache.store import open_store
        store = open_store(Settings(cache_dir=Path(sys.argv[1])))
        store.record_hit(store.candidates(sys.argv[2]).manifests[0])
    """
    _, err = python(code, store.root, manifest.key).communicate(timeout=30)
    assert err == ""
    assert [item.hits for item in store.listing()] == [1]


START = """if True:
    import multiprocessing, os, signal, sys, time
    from pathlib import Path
    from npugx_cache.config import Settings
    from npugx_cache.store import flushing, open_store

    store = open_store(Settings(cache_dir=Path(sys.argv[1])))
    manifest, = store.candidates(sys.argv[2]).manifests

    def hit():
        store.record_hit(manifest)
"""


@pytest.mark.parametrize("parent_hits", [0, 1])
def test_hits_of_a_forked_multiprocessing_child_are_counted(store, publish, python, parent_hits):
    manifest = publish(store)
    code = (
        START
        + """
    for _ in range(int(sys.argv[3])):
        hit()
    child = multiprocessing.get_context("fork").Process(target=hit)
    child.start()
    child.join()
    """
    )
    _, err = python(code, store.root, manifest.key, parent_hits).communicate(timeout=60)
    assert err == ""
    assert [item.hits for item in store.listing()] == [1 + parent_hits]


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"])
def test_hits_of_a_process_that_is_killed_later_are_counted(store, publish, python, end):
    manifest = publish(store)
    path = store.root / "v1/ac/00" / manifest.key / manifest.entry
    os.utime(path, (1, time.time() - 7200))
    code = (
        START
        + f"""
    flushing.SOON = 0.01
    hit()
    while not store._usage.load():
        time.sleep(0.01)
    {end}
    """
    )
    python(code, store.root, manifest.key).communicate(timeout=60)
    assert [item.hits for item in store.listing()] == [1]
    assert time.time() - path.stat().st_mtime < 3600


def test_the_counters_hold_no_pickle(hits, state_home):
    hits(2)
    with sqlite3.connect(database(state_home)) as connection:
        rows = connection.execute("SELECT raw, mode, filename, value FROM Cache").fetchall()
    connection.close()
    assert rows
    for raw, mode, filename, _ in rows:
        assert (raw, mode, filename) == (1, 1, None)


class Bomb:
    def __reduce__(self):
        return (os._exit, (66,))


def test_a_pickle_planted_in_the_counters_is_neither_run_nor_in_the_way(hits, state_home):
    hits(1)
    with sqlite3.connect(database(state_home)) as connection:
        connection.execute("UPDATE Cache SET mode = 4, value = ?", (pickle.dumps(Bomb()),))
    connection.close()
    assert hits(0) == 0
    assert hits(2) == 2


def test_a_row_that_names_a_file_is_not_followed(hits, state_home, tmp_path):
    hits(1)
    with sqlite3.connect(database(state_home)) as connection:
        connection.execute("UPDATE Cache SET mode = 2, filename = '/etc/passwd', value = NULL")
    connection.close()
    assert hits(0) == 0
    assert hits(1) == 1


@pytest.mark.parametrize("garbage", [b"no database" * 1000, b""])
def test_a_damaged_database_costs_the_counters_and_nothing_else(hits, state_home, garbage):
    hits(1)
    path = database(state_home)
    for file in path.parent.iterdir():
        file.unlink()
    path.write_bytes(garbage)
    hits(1)
    hits(1)
    assert hits(1) >= 1


def test_an_unusable_state_folder_is_a_debug_line(hits, state_home, caplog):
    state_home.write_text("a file in its place")
    caplog.set_level("DEBUG", logger="npugx_cache")
    assert hits(3) == 0
    assert {record.levelname for record in caplog.records} == {"DEBUG"}


@pytest.mark.parametrize("value", [object(), {1, 2}, 1 << 80, Bomb(), [object()]])
def test_the_disk_refuses_to_store_what_would_be_pickled(tmp_path, value):
    disk = PlainDisk(str(tmp_path), min_file_size=1 << 20)
    with pytest.raises((TypeError, ValueError)):
        disk.store(value, False)
    with pytest.raises(TypeError):
        disk.put(value)


def test_the_disk_refuses_to_fetch_pickles(tmp_path):
    disk = PlainDisk(str(tmp_path), min_file_size=1 << 20)
    bomb = pickle.dumps(Bomb())
    with pytest.raises(TypeError):
        disk.fetch(4, None, bomb, False)
    with pytest.raises(TypeError):
        disk.get(bomb, False)
    with pytest.raises(ValueError):
        disk.fetch(1, None, bomb, False)


@pytest.mark.parametrize("value", [1, -2.5, "text", b"\0raw", [1, {"a": None}], True, None])
def test_the_disk_gives_back_plain_values(tmp_path, value):
    disk = PlainDisk(str(tmp_path), min_file_size=1 << 20)
    _, mode, filename, stored = disk.store(value, False)
    stored = bytes(stored) if isinstance(stored, memoryview) else stored
    assert disk.fetch(mode, filename, stored, False) == value


def test_two_stores_do_not_share_counters(hits, open_at, tmp_path, publish):
    hits(4)
    other = open_at(tmp_path / "other")
    publish(other)
    assert [item.hits for item in other.listing()] == [0]
