"""A cache folder that is read-only, full, gone, foreign or in the way never stops a worker (P2)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("inflict.py")
NOBODY = 65534
ROOT = os.geteuid() == 0

as_root = pytest.mark.skipif(not ROOT, reason="only root can become another user or mount")


def all_paths(store):
    return [store, *store.rglob("*")]


def a_file(store):
    shutil.rmtree(store)
    store.write_text("mine")


def below_a_file(store):
    a_file(store)
    return store / "cache"


def a_dead_link(store):
    shutil.rmtree(store)
    store.symlink_to(store.parent / "nowhere" / "at" / "all")


def everybody_can_write(store):
    store.chmod(0o777)


def everybody_can_write_a_part(store):
    (store / "v1" / "cas").chmod(0o777)


def of_somebody_else(store):
    for path in all_paths(store):
        os.chown(path, NOBODY, NOBODY)


def without_write_access(store):
    for path in all_paths(store):
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o555 if path.is_dir() else 0o444)


def of_root_and_readable(store):
    for path in all_paths(store):
        path.chmod(0o755 if path.is_dir() else 0o644)


def unreadable(store):
    store.chmod(0o700)


HERE = {
    "a_file": (a_file, "not a folder"),
    "below_a_file": (below_a_file, "file"),
    "everybody_can_write": (everybody_can_write, "everybody can write it"),
    "everybody_can_write_a_part": (everybody_can_write_a_part, "everybody can write it"),
}
HERE_AS_ROOT = {"of_somebody_else": (of_somebody_else, f"owned by uid {NOBODY}")}
ELSEWHERE = {
    "without_write_access": without_write_access,
    "of_root_and_readable": of_root_and_readable,
    "unreadable": unreadable,
}


@pytest.fixture(scope="module")
def folders(once):
    def make(surroundings):
        # In a folder that other users can reach, unlike those of pytest.
        place = Path(tempfile.mkdtemp(prefix="npugx_faults_"))
        place.chmod(0o755)
        (place / "state").mkdir()
        (place / "state").chmod(0o777)
        try:
            return {
                name: dict(zip(names, rows, strict=True))
                for name, (names, rows) in in_bad_folders(surroundings, place).items()
            }
        finally:
            shutil.rmtree(place, ignore_errors=True)

    return once("folders", make)


def in_bad_folders(surroundings, place):
    good = place / "good"
    environment = {"XDG_STATE_HOME": str(place / "state")}
    assert surroundings.run(SCRIPT, "fill", good, **environment)["stored"] == 1

    def spoiled(name, how):
        store = place / name
        shutil.copytree(good, store)
        return how(store) or store

    here = HERE | (HERE_AS_ROOT if ROOT else {}) | {"a_dead_link": (a_dead_link, "")}
    paths = [spoiled(name, how) for name, (how, _) in here.items()]
    answers = {"here": (list(here), surroundings.run(SCRIPT, "call", *paths, **environment))}
    if ROOT:
        paths = [place / "first", *(spoiled(name, how) for name, how in ELSEWHERE.items())]
        worker = surroundings.start(SCRIPT, "call", *paths, f"--uid={NOBODY}", **environment)
        answers["elsewhere"] = list(ELSEWHERE), worker.result()
    return answers


def logged(row, level="WARNING"):
    return [text for name, text in row["log"] if name == level]


def told(row):
    return [*row["reasons"], *(text for _, text in row["log"])]


def works_without_store(rows, reason):
    for name in ("f", "g"):
        row = rows[name]
        assert row["right"], row
        assert row["raised"] is None
        assert (row["hits"], row["misses"], row["bypasses"]) == (0, 1, 0)
        assert any(reason in text for text in told(row)), row["log"]
    # Once in a process: the other function says it where somebody asks.
    assert sum(reason in text for name in "fg" for text in logged(rows[name])) >= 1
    kind, text = rows["strict"]["raised"]
    assert kind == "StoreError"
    assert reason in text


@pytest.mark.parametrize(
    "name", [*HERE, *(pytest.param(name, marks=as_root) for name in HERE_AS_ROOT)]
)
def test_a_folder_that_can_not_be_a_trusted_store_is_not_used_and_strict_raises(folders, name):
    _, reason = (HERE | HERE_AS_ROOT)[name]
    works_without_store(folders["here"][name], reason)


def test_a_link_that_leads_nowhere_stops_nobody(folders):
    for name in ("f", "g"):
        row = folders["here"]["a_dead_link"][name]
        assert row["right"]
        assert row["raised"] is None


@as_root
def test_a_folder_without_write_access_hits_and_stores_nothing(folders):
    rows = folders["elsewhere"]["without_write_access"]
    assert rows["f"]["right"]
    assert rows["f"]["hits"] == 1, told(rows["f"])
    assert rows["g"]["right"]
    assert (rows["g"]["misses"], rows["g"]["stored"], rows["g"]["raised"]) == (1, 0, None)
    assert any("writ" in text or "read-only" in text for text in told(rows["g"]))


@as_root
def test_a_folder_of_root_that_others_can_read_is_hit_by_them(folders):
    rows = folders["elsewhere"]["of_root_and_readable"]
    assert rows["f"]["hits"] == 1, told(rows["f"])
    assert rows["g"]["right"]
    assert rows["g"]["raised"] is None


@as_root
def test_a_folder_that_can_not_be_read_at_all_is_not_used(folders):
    works_without_store(folders["elsewhere"]["unreadable"], "unreadable")


def test_a_folder_that_is_removed_between_two_calls(surroundings):
    *rows, right = surroundings.run(SCRIPT, "vanish", surroundings.store)
    assert all(row["right"] and row["raised"] is None for row in rows)
    assert all(right), right


def test_switched_off_it_compiles_and_makes_no_folder(surroundings):
    (rows,) = surroundings.run(SCRIPT, "call", surroundings.store, NPUGX_CACHE="off")
    for row in rows.values():
        assert row["right"]
        assert row["raised"] is None
        assert (row["misses"], row["stored"]) == (1, 0)
        assert logged(row) == []
    assert not surroundings.store.exists()


def test_readonly_it_hits_and_writes_nothing(surroundings):
    store = surroundings.store
    surroundings.run(SCRIPT, "fill", store)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    (rows,) = surroundings.run(SCRIPT, "call", store, NPUGX_CACHE="readonly")
    assert rows["f"]["right"]
    assert rows["f"]["hits"] == 1
    assert rows["g"]["right"]
    assert (rows["g"]["misses"], rows["g"]["stored"], rows["g"]["raised"]) == (1, 0, None)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


@pytest.fixture
def small_disk(tmp_path):
    """A filesystem of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs", str(place)]
    if not ROOT or shutil.which("mount") is None:
        pytest.skip("only root can mount a small filesystem")
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


def fill_up(place):
    block = b"x" * 4096
    with (place / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(block):
                pass
        except OSError:
            return


def test_a_full_disk_is_not_used_and_strict_raises(small_disk, surroundings):
    fill_up(small_disk)
    (rows,) = surroundings.run(SCRIPT, "call", small_disk / "cache")
    works_without_store(rows, "")


def test_on_a_disk_that_is_full_entries_hit_and_new_ones_take_the_place_of_old_ones(
    small_disk, surroundings
):
    store = small_disk / "cache"
    assert surroundings.run(SCRIPT, "fill", store)["stored"] == 1
    fill_up(small_disk)
    (rows,) = surroundings.run(SCRIPT, "call", store)
    assert rows["f"]["right"]
    assert rows["f"]["hits"] == 1
    assert rows["g"]["right"]
    assert (rows["g"]["misses"], rows["g"]["raised"]) == (1, None)
    assert any("disk full" in text for text in told(rows["g"])), rows["g"]["log"]
