from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from npugx_cache.config import Settings, state_folder
from npugx_cache.store import Listed, open_store
from npugx_cache.store.upkeep import flushing
from npugx_cache.store.upkeep.derived import Derived
from npugx_cache.store.upkeep.plain_disk import PlainDisk
from npugx_cache.store.upkeep.usage import Usage, Use


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


def test_hits_are_counted_by_the_hour(store, publish, state_home, open_at):
    entry, now = publish(store).entry, time.time()
    usage = Usage(str(store.root), state_folder())
    assert usage.hits_since(0) == 0
    for hours in (0, 1, 1, 40 * 24):
        usage.add({entry: Use(hits=2, last_used=now - hours * 3600)})
    assert usage.hits_since(now) == 2
    assert usage.hits_since(now - 3600) == open_at().hits_since(now - 3600) == 6
    assert usage.hits_since(0) == 8
    assert usage.load()[entry].hits == 8
    usage.forget([entry])
    assert usage.hits_since(0) == 8
    usage.add({f"{h:064x}": Use(hits=1, last_used=now - h * 3600) for h in range(1000)})
    assert usage.hits_since(0) < 800


@pytest.mark.parametrize("planted", [7, ["x"], {"now": 1}, {"1": -1}, {"9": "many"}])
def test_counts_of_hours_that_are_nonsense_count_nothing(store, planted):
    usage = Usage(str(store.root), state_folder())
    with Derived("usage", str(store.root), state_folder()).open_database() as cache:
        cache.set("hours", planted)
    assert usage.hits_since(0) == 0
    usage.add({"ab" * 32: Use(hits=3, last_used=time.time())})
    assert usage.hits_since(0) == 3


def test_a_clock_that_was_ahead_makes_no_entry_the_last_used_for_good(store, publish):
    manifest, now = publish(store), time.time()
    far = now + 32 * 365 * 86400
    usage = Usage(str(store.root), state_folder())
    usage.add({manifest.entry: Use(hits=5, last_used=far)})
    path = store.root / "v1/ac/00" / manifest.key / manifest.entry
    os.utime(path, (far, far))
    assert usage.hits_since(now - 86400) == 0
    store.record_hit(manifest)
    store.flush()
    (item,) = store.listing()
    assert item.last_used < far - 86400
    assert path.stat().st_mtime < far - 86400
    assert usage.hits_since(now - 86400) == 1
    assert item.hits == 6


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


def test_hits_go_to_the_state_folder_of_when_the_store_was_opened(
    store, publish, state_home, tmp_path, monkeypatch
):
    """A timer writes them later, when the environment may name another, as in the next test."""
    store.record_hit(publish(store))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    flushing._flush_all()
    assert not (tmp_path / "another").exists()
    assert database(state_home).is_file()
    assert [item.hits for item in store.listing()] == [1]


def test_the_state_folder_is_where_platformdirs_says(monkeypatch, tmp_path):
    from platformdirs import user_state_path

    for home in (str(tmp_path), "", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", home)
        assert state_folder() == user_state_path("npugx_cache")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state_folder() == user_state_path("npugx_cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_folder() == tmp_path / ".local/state/npugx_cache"


NOBODY = 65534


@pytest.fixture
def open_to_all():
    """A folder like /tmp, with none above it that other users can't enter."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to act as another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o1777)
        yield Path(name)


def test_a_link_that_another_user_planted_in_the_state_folder_is_not_followed(
    store, publish, open_to_all, tmp_path, monkeypatch, caplog
):
    manifest = publish(store)
    mine = tmp_path / "mine.db"
    with sqlite3.connect(mine) as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    before = mine.read_bytes()
    monkeypatch.setenv("XDG_STATE_HOME", str(open_to_all))
    folder = Derived("usage", str(store.root), state_folder()).folder()
    subprocess.run(
        ["/bin/sh", "-c", 'umask 0; mkdir -p "$0"; ln -s "$1" "$0/cache.db"', folder, mine],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        check=True,
    )
    store = open_store(Settings(cache_dir=store.root))
    for _ in range(2):
        store.record_hit(manifest)
        store.flush()
    assert [item.hits for item in store.listing()] == [0]
    assert mine.read_bytes() == before
    warnings = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "no hits are counted" in warnings[0]
    assert "XDG_STATE_HOME" in warnings[0]


def test_no_folder_is_left_in_a_state_folder_of_another_user(
    store, publish, open_to_all, monkeypatch, caplog
):
    manifest = publish(store)
    home = open_to_all / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    home.chmod(0o777)
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    store = open_store(Settings(cache_dir=store.root))
    store.record_hit(manifest)
    store.flush()
    assert list(home.iterdir()) == []
    assert "no hits are counted" in caplog.text


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_a_database_that_is_a_link_is_not_written(hits, state_home, tmp_path, link, caplog):
    assert hits(1) == 1
    path = database(state_home)
    path.rename(tmp_path / "elsewhere.db")
    link(tmp_path / "elsewhere.db", path)
    before = (tmp_path / "elsewhere.db").read_bytes()
    assert hits(1) == 0
    assert (tmp_path / "elsewhere.db").read_bytes() == before
    assert "is not a file of its own" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="changing owners needs root")
def test_a_database_of_another_user_is_not_used(hits, state_home, caplog):
    assert hits(1) == 1
    os.chown(database(state_home), NOBODY, NOBODY)
    assert hits(1) == 0
    assert "others can write" in caplog.text


def test_a_state_folder_that_everybody_can_write_is_not_used(hits, state_home, caplog):
    assert hits(1) == 1
    database(state_home).parent.chmod(0o777)
    assert hits(1) == 0
    assert "everybody can write it" in caplog.text


def test_flush_freshens_a_manifest_that_was_not_used_for_an_hour(store, publish):
    manifest = publish(store)
    path = store.root / "v1/ac/00" / manifest.key / manifest.entry
    for age, touched in ((1800, False), (7200, True)):
        now = time.time()
        os.utime(path, (now - age, now - age))
        store.record_hit(manifest)
        store.flush()
        assert (path.stat().st_mtime > now - age + 1) is touched


def test_the_last_use_of_the_listing_is_the_last_hit(store, publish):
    manifest = publish(store)
    path = store.root / "v1/ac/00" / manifest.key / manifest.entry
    os.utime(path, (1000, time.time() - 100))
    before = time.time()
    store.record_hit(manifest)
    store.flush()
    (item,) = store.listing()
    assert isinstance(item, Listed)
    assert item.last_used >= before


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
    import multiprocessing, os, signal, sys, threading
    from pathlib import Path
    from npugx_cache.config import Settings
    from npugx_cache.store import open_store
    from npugx_cache.store.upkeep import flushing

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
    before = time.time() - 7200
    os.utime(path, (1, before))
    code = (
        START
        + f"""
    flushing.SOON = 0.0
    hit()
    for timer in [each for each in threading.enumerate() if isinstance(each, threading.Timer)]:
        timer.join()
    {end}
    """
    )
    python(code, store.root, manifest.key).communicate(timeout=60)
    assert [item.hits for item in store.listing()] == [1]
    assert path.stat().st_mtime > before + 1


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
    mine = tmp_path / "mine"
    mine.write_text("a file of the user's")
    with sqlite3.connect(database(state_home)) as connection:
        connection.execute("UPDATE Cache SET mode = 2, filename = ?, value = NULL", (str(mine),))
    connection.close()
    assert hits(0) == 0
    assert hits(1) == 1
    assert mine.read_text() == "a file of the user's"


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
