from __future__ import annotations

import os
import tracemalloc

import pytest

from npugx_cache.store import Published
from npugx_cache.store.content import blobs
from npugx_cache.store.format import manifest as format_of_manifests
from npugx_cache.store.format.plain import Malformed
from npugx_cache.store.tools.audit import verify


def paths(store, manifest):
    entry = store.root / "v1/ac" / manifest.key[:2] / manifest.key / manifest.entry
    blobs = [store.root / "v1/cas" / ref.sha256[:2] / ref.sha256 for ref in manifest.blobs]
    return entry, blobs


def looked(store):
    return verify(store.folder.look_only("test"), repair=False)


def test_a_sound_store_has_nothing_bad_and_every_byte_is_counted(store, publish):
    for number in range(3):
        publish(store, number)
    report = looked(store)
    assert (report.entries, report.bad) == (3, [])
    files = [path for part in ("ac", "cas") for path in (store.root / "v1" / part).rglob("*")]
    assert report.size == sum(path.stat().st_size for path in files if path.is_file())


def damage_blob(store, manifest):
    path = paths(store, manifest)[1][0]
    path.write_bytes(bytes(path.stat().st_size))
    return path


def damage_manifest(store, manifest):
    path = paths(store, manifest)[0]
    path.write_bytes(path.read_bytes()[:-3])
    return path


def remove_blob(store, manifest):
    path = paths(store, manifest)[1][0]
    path.unlink()
    return paths(store, manifest)[0]


@pytest.mark.parametrize("damage", [damage_blob, damage_manifest, remove_blob])
def test_damage_is_found_and_left_and_repair_moves_it_away(store, draft, damage):
    given = draft()
    manifest = store.publish(given).manifest
    kept = store.publish(draft(1)).manifest
    bad = damage(store, manifest)
    before = sorted(store.root.rglob("*"))
    report = looked(store)
    assert str(bad.relative_to(store.root)) in [item.path for item in report.bad]
    assert not any(item.repaired for item in report.bad)
    assert sorted(store.root.rglob("*")) == before
    repaired = verify(store.folder, repair=True)
    assert repaired.bad
    assert all(item.repaired for item in repaired.bad)
    assert looked(store).bad == []
    assert store.candidates(kept.key).manifests == (kept,)
    assert isinstance(store.publish(given), Published)
    assert store.read(store.candidates(given.key).manifests[0], given.blobs) == given.blobs


def test_a_blob_that_nothing_names_is_verified_too(store, publish):
    manifest = publish(store)
    entry, blobs = paths(store, manifest)
    entry.unlink()
    blobs[0].write_bytes(b"x")
    report = looked(store)
    assert report.blobs == len(blobs)
    assert [item.path for item in report.bad] == [str(blobs[0].relative_to(store.root))]


def test_a_blob_of_two_entries_is_read_once_and_named_once(store, publish):
    shared = {"a": b"x" * 100}
    first = publish(store, 0, blobs=shared)
    second = publish(store, 1, blobs=shared)
    damage_blob(store, first)
    report = verify(store.folder, repair=True)
    assert report.blobs == 1
    assert len(report.bad) == 3
    for manifest in (first, second):
        assert not paths(store, manifest)[0].exists()


def test_what_is_only_not_trusted_is_never_moved(store, publish):
    manifest = publish(store)
    path = paths(store, manifest)[0]
    path.chmod(0o666)
    (item,) = verify(store.folder, repair=True).bad
    assert not item.repaired
    assert path.exists()


def test_random_rubbish_in_the_store_is_no_error(store, publish):
    publish(store)
    for name in ("v1/ac/00/x", "v1/cas/zz", "v1/cas/00"):
        path = store.root / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_bytes(os.urandom(10))
    assert looked(store).bad == []


@pytest.fixture
def traced():
    """Counts the memory that Python asks for."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def test_a_blob_that_inflates_is_not_held_in_memory(store, publish, traced):
    size = 48 << 20
    manifest = publish(store, blobs={"zeros": bytes(size)})
    assert sum(ref.stored_size for ref in manifest.blobs) < size / 500
    tracemalloc.reset_peak()
    report = looked(store)
    assert (report.entries, report.blobs, report.bad) == (1, 1, [])
    assert traced() < size / 4


def test_a_blob_that_inflates_to_another_size_is_bad(store, publish):
    manifest = publish(store, blobs={"zeros": bytes(5 << 20)})
    (ref,) = manifest.blobs
    assert blobs.check(store.folder, ref) is None
    for size in (0, ref.logical_size - 1, ref.logical_size + 1):
        with pytest.raises(Malformed, match="does not decompress"):
            blobs.check(store.folder, ref._replace(logical_size=size))


def test_a_blob_that_would_inflate_too_far_is_refused_before_it_is_read(
    store, draft, publish, monkeypatch
):
    data = {"zeros": bytes(2 << 20)}
    bomb = publish(store, blobs=data)
    monkeypatch.setattr(format_of_manifests, "MAX_INFLATED", 1 << 20)
    (bad,) = looked(store).bad
    assert "blob zeros inflates to 2097152 bytes, more than 1048576" in bad.reason
    assert bomb.key in bad.path
    # What a release stores it also reads.
    monkeypatch.setattr(blobs, "MAX_INFLATED", 1 << 20)
    answer = store.publish(draft(1, blobs=data))
    assert [ref.codec for ref in answer.manifest.blobs] == ["raw"]
    assert store.read(answer.manifest, data) == data
