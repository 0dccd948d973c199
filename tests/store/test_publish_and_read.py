from __future__ import annotations

import errno
import os
import subprocess
import threading
from pathlib import Path

import pytest

from npugx_cache.store import Manifest, Miss, NotStored, PrunePolicy, Published
from npugx_cache.store.format.layout import CACHEDIR_TAG
from npugx_cache.store.io import syscalls


def test_what_was_published_is_read_back(store, draft):
    given = draft(blobs={"a": b"x" * 5000, "b": os.urandom(300), "empty": b""})
    published = store.publish(given)
    assert isinstance(published, Published)
    found = store.candidates(given.key)
    assert found.manifests == (published.manifest,)
    assert found.missing_reason is None
    assert store.read(published.manifest, given.blobs) == given.blobs


def test_a_manifest_keeps_every_plain_type_and_tuples_become_lists(store, publish):
    about = {"n": None, "b": True, "i": -5, "f": 0.5, "s": "ä", "raw": b"\0\xff", "l": [1, [2]]}
    manifest = publish(store, about={**about, "t": (1, 2), "d": {"z": 1, "a": 2}})
    assert manifest.about == {**about, "t": [1, 2], "d": {"z": 1, "a": 2}}
    assert store.candidates(manifest.key).manifests[0].about == manifest.about


def test_compression_is_used_where_it_saves_more_than_a_tenth(store, publish):
    noise = os.urandom(4096)
    manifest = publish(
        store,
        blobs={"text": b"ab" * 4096, "noise": noise, "tensor": b"\0" * 4096},
        uncompressed=frozenset({"tensor"}),
    )
    assert {ref.name: ref.codec for ref in manifest.blobs} == {
        "text": "zlib",
        "noise": "raw",
        "tensor": "raw",
    }


def test_one_key_holds_several_entries_most_recently_used_first(store, publish):
    first = publish(store, about={"shape": 1})
    second = publish(store, about={"shape": 2})
    folder = store.root / "v1/ac/00" / first.key
    os.utime(folder / first.entry, (2000, 2000))
    os.utime(folder / second.entry, (1000, 1000))
    assert store.candidates(first.key).manifests == (first, second)


def test_equal_results_of_two_publishers_are_one_entry_whatever_the_dict_order(store, publish):
    blobs = {"a": b"1", "b": b"2"}
    one = publish(store, blobs=blobs, about={"x": 1, "y": 2})
    other = publish(store, blobs=dict(reversed(blobs.items())), about={"y": 2, "x": 1})
    assert one.entry == other.entry
    assert len(store.candidates(one.key).manifests) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"about": {"x": 1}},
        {"factors": (("torch", "2.14", "process"),)},
        {"blobs": {"program": b"other"}},
        {"kind": "bypass"},
        {"key": "f" * 64},
    ],
)
def test_whatever_makes_a_result_changes_the_entry_id(store, publish, change):
    blobs = {"program": b"p"}
    assert publish(store, blobs=blobs).entry != publish(store, **{"blobs": blobs, **change}).entry


def test_a_bypass_is_listed_and_is_no_candidate(store, publish):
    manifest = publish(store, kind="bypass", blobs={}, about={"reason": "RNG op"})
    found = store.candidates(manifest.key)
    assert found.manifests == ()
    assert found.missing_reason == "only a bypass under this key"
    assert [item.manifest.kind for item in store.listing()] == ["bypass"]


def test_a_key_without_entries_says_so(store):
    assert store.candidates("a" * 64).missing_reason == "no entry under this key"
    assert "hex" in store.candidates("../../etc").missing_reason


def test_a_blob_that_the_entry_does_not_have_is_a_miss(store, publish):
    answer = store.read(publish(store), ["nothing"])
    assert isinstance(answer, Miss)
    assert "nothing" in answer.reason


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"about": {"x": {1, 2}}}, "set"),
        ({"about": {"x": float("nan")}}, "NaN"),
        ({"about": {"x": 1 << 70}}, "encoded"),
        ({"about": {"x": "\udc80"}}, "encoded"),
        ({"about": {1: 2}}, "is not a str"),
        ({"key": "xyz"}, "key"),
        ({"key": "../" * 20}, "key"),
        ({"identity": "I" * 32}, "identity"),
        ({"kind": "other"}, "kind"),
        ({"cost_seconds": float("inf")}, "cost_seconds"),
        ({"cost_seconds": -1.0}, "cost_seconds"),
        ({"factors": (("a", "b"),)}, "unpack"),
        ({"blobs": {"../x": b""}}, "name"),
        ({"blobs": {".hidden": b""}}, "name"),
        ({"blobs": {"": b""}}, "name"),
        ({"blobs": {"x": None}}, "can't be stored"),
    ],
)
def test_a_draft_that_a_reader_would_refuse_is_not_stored_and_raises_nothing(
    store, draft, change, word
):
    answer = store.publish(draft(**change))
    assert isinstance(answer, NotStored)
    assert word in answer.reason
    assert list(store.listing()) == []


def test_about_nested_without_end_is_not_stored(store, draft):
    endless: dict[str, object] = {}
    endless["again"] = endless
    assert isinstance(store.publish(draft(about=endless)), NotStored)


def test_siblings_are_the_entries_of_one_function_newest_first(store, publish):
    old = publish(store, 1)
    os.utime(store.root / "v1/fn" / old.identity / old.key, (1, 1))
    new = publish(store, 2)
    assert new.created > old.created
    publish(store, 3, identity="ee" * 16)
    assert store.siblings("1d" * 16) == (new, old)
    assert store.siblings("1d" * 16, limit=1) == (new,)
    assert store.siblings("00" * 16) == ()


def test_missing_markers_only_cost_the_siblings(store, publish):
    manifest = publish(store)
    (store.root / "v1/fn" / manifest.identity / manifest.key).unlink()
    assert store.siblings(manifest.identity) == ()
    assert store.candidates(manifest.key).manifests == (manifest,)


def test_find_takes_a_unique_prefix_and_names_the_candidates_of_an_ambiguous_one(store, publish):
    manifests = [publish(store, number) for number in range(3)]
    assert store.find(manifests[0].entry) == manifests[0]
    assert store.find(manifests[0].entry[:12].upper()) == manifests[0]
    assert "4 or more" in store.find("ab").reason
    assert "not an entry id" in store.find("nothex").reason
    assert "no entry" in store.find("0" * 64).reason


def test_find_takes_no_other_file_for_an_entry(store, publish):
    entry = publish(store)
    (store.root / "v1/ac/00" / entry.key / f"{entry.entry[:20]}.part").write_bytes(b"")
    assert store.find(entry.entry[:12]) == entry


def test_an_entry_that_took_long_is_synced_with_all_folders_that_are_new(
    store, publish, monkeypatch
):
    synced = set()

    def fsync(fd):
        synced.add(str(Path(f"/proc/self/fd/{fd}").readlink()))

    monkeypatch.setattr(os, "fsync", fsync)
    quick = publish(store, 1)
    assert synced == set()
    slow = publish(store, 0xAA << 248, cost_seconds=9.0)
    v1 = store.root / "v1"
    blobs = {v1 / "cas" / ref.sha256[:2] for ref in slow.blobs}
    blobs -= {v1 / "cas" / ref.sha256[:2] for ref in quick.blobs}
    folders = {v1 / "ac", v1 / "ac/aa", v1 / "ac/aa" / slow.key, v1 / "cas", *blobs}
    assert {str(path) for path in folders} <= synced


def test_an_error_of_the_tidying_up_does_not_hide_why_nothing_was_stored(store, draft, monkeypatch):
    def fail(number):
        def failing(*args, **kwargs):
            raise OSError(number, os.strerror(number))

        return failing

    monkeypatch.setattr(os, "write", fail(errno.EFBIG))
    monkeypatch.setattr(os, "unlink", fail(errno.EACCES))
    answer = store.publish(draft(2))
    assert isinstance(answer, NotStored)
    assert "EFBIG" in answer.reason


def test_find_names_the_entries_of_an_ambiguous_prefix(store, publish):
    entry = publish(store).entry
    twin = entry[:-1] + ("0" if entry[-1] != "0" else "1")
    (store.root / "v1/ac/00" / ("0" * 64) / twin).write_bytes(b"")
    answer = store.find(entry[:8])
    assert isinstance(answer, Miss)
    assert entry[:16] in answer.reason
    assert "ambiguous" in answer.reason


def test_a_moved_folder_still_hits_and_holds_no_absolute_path(store, publish, open_at, tmp_path):
    manifest = publish(store)
    here = str(store.root).encode()
    files = [path for path in store.root.rglob("*") if path.is_file()]
    assert not [path for path in files if here in path.read_bytes()]
    moved = tmp_path / "elsewhere"
    store.root.rename(moved)
    other = open_at(moved)
    assert other.candidates(manifest.key).manifests == (manifest,)
    assert isinstance(other.read(manifest, ["program", "text"]), dict)


def test_the_folder_carries_the_cachedir_tag_and_nobody_else_can_enter(store):
    assert (store.root / "CACHEDIR.TAG").read_bytes() == CACHEDIR_TAG
    assert store.root.stat().st_mode & 0o777 == 0o700


def test_publishing_leaves_no_temporary_and_private_modes(store, publish):
    publish(store, cost_seconds=10.0)
    assert list((store.root / "v1/tmp").iterdir()) == []
    modes = {path.stat().st_mode & 0o777 for path in store.root.rglob("*") if path.is_file()}
    assert modes == {0o600}


def test_under_a_group_umask_a_private_store_stays_private(open_at, publish, python, root):
    code = """if True:
        import os, sys
        from pathlib import Path
        os.umask(0o002)
        from npugx_cache.config import Settings
        from npugx_cache.store import Draft, open_store
        store = open_store(Settings(cache_dir=Path(sys.argv[1])))
        print(store.publish(Draft(key='a' * 64, identity='b' * 64, kind='graph', cost_seconds=1,
              factors=(), about={}, blobs={'x': b'1'})))
    """
    out, err = python(code, root).communicate(timeout=30)
    assert out.startswith("Published"), out + err
    assert open_at().candidates("a" * 64).manifests


def test_threads_publish_and_read_one_store_together(store, draft):
    failures: list[object] = []

    def work(number: int) -> None:
        for step in range(10):
            given = draft(step, blobs={"program": b"same %d" % step, "own": b"%d" % number})
            published = store.publish(given)
            if not isinstance(published, Published):
                failures.append(published)
            elif store.read(published.manifest, given.blobs) != given.blobs:
                failures.append(published.manifest.entry)
            else:
                store.record_hit(published.manifest)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(list(store.listing())) == 60


def test_a_forked_child_can_use_its_parents_store(store, publish, python, root):
    manifest = publish(store)
    code = """if True:
        import os, sys
        from pathlib import Path
        from npugx_cache.config import Settings
        from npugx_cache.store import Draft, open_store
        store = open_store(Settings(cache_dir=Path(sys.argv[1])))
        manifest = store.candidates(sys.argv[2]).manifests[0]
        store.record_hit(manifest)
        store._mutex.acquire()          # the fork happens while another thread counts a hit
        child = os.fork()
        if child == 0:
            store.record_hit(manifest)
            with store.lock('ab' * 16, wait=1) as answer:
                print(type(answer).__name__, len(store.read(manifest, ['program'])), flush=True)
            print(type(store.publish(Draft(
                key='ef' * 32, identity='b' * 64, kind='graph', cost_seconds=1.0, factors=(),
                about={}, blobs={'x': b'of the child'}))).__name__, flush=True)
            os._exit(0)
        print(os.waitpid(child, 0)[1])
        store._mutex.release()
    """
    out, err = python(code, root, manifest.key).communicate(timeout=30)
    assert out.split() == ["Locked", "1", "Published", "0"], err


def test_a_store_whose_folder_was_removed_makes_it_again(store, publish):
    subprocess.run(["rm", "-rf", store.root], check=True)
    manifest = publish(store)
    assert store.candidates(manifest.key).manifests == (manifest,)


def test_publish_heals_a_key_folder_removed_between_its_steps(store, publish, draft):
    publish(store)
    store.prune(PrunePolicy(everything=True))
    assert isinstance(store.publish(draft()), Published)


def test_a_blob_that_a_cleaner_takes_before_the_manifest_names_it_is_written_again(
    store, publish, monkeypatch
):
    shared = os.urandom(500)
    digest = publish(store, 1, blobs={"a": shared}).blobs[0].sha256
    blob, move = store.root / "v1/cas" / digest[:2] / digest, syscalls.rename

    def clean_before(*args, **kwargs):
        blob.unlink()
        monkeypatch.undo()
        return move(*args, **kwargs)

    monkeypatch.setattr(syscalls, "rename", clean_before)  # of the manifest to its place
    manifest = publish(store, 2, blobs={"a": shared})
    assert syscalls.rename is move
    assert store.read(manifest, ["a"]) == {"a": shared}


def test_a_manifest_is_a_frozen_value(store, publish):
    manifest = publish(store)
    with pytest.raises(AttributeError):
        manifest.key = "x"
    assert isinstance(manifest._replace(cost_seconds=2.0), Manifest)
