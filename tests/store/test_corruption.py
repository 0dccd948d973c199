"""A flipped bit, a short file, a foreign file: a miss with a reason, quarantine, and healing."""

from __future__ import annotations

import hashlib
import os
import shutil

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npugx_cache.store import Miss, Published
from npugx_cache.store.format import manifest as manifest_module
from npugx_cache.store.format.manifest import FORMAT, decode, encode
from npugx_cache.store.format.plain import Malformed


def manifest_path(store, manifest):
    return store.root / "v1/ac" / manifest.key[:2] / manifest.key / manifest.entry


def blob_path(store, manifest, name):
    digest = next(ref.sha256 for ref in manifest.blobs if ref.name == name)
    return store.root / "v1/cas" / digest[:2] / digest


def quarantined(store):
    return [p.name for p in (store.root / "v1/quarantine").iterdir() if p.suffix != ".reason"]


def test_a_flipped_bit_at_every_byte_of_a_manifest_is_refused(store, publish):
    data = encode(publish(store, blobs={"a": b"1"}))
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        with pytest.raises(Malformed):
            decode(bytes(flipped), KEY)


@pytest.mark.parametrize("position", [0, 10, 100, -40, -1])
def test_a_flipped_bit_in_a_manifest_is_a_miss_and_the_next_publish_heals(store, draft, position):
    published = store.publish(given := draft())
    path = manifest_path(store, published.manifest)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    found = store.candidates(given.key)
    assert found.manifests == ()
    assert found.refused[0].entry == published.manifest.entry
    assert "digest mismatch" in found.missing_reason
    assert not path.exists()
    assert len(quarantined(store)) == 1
    assert isinstance(store.publish(given), Published)
    assert len(store.candidates(given.key).manifests) == 1


def test_a_flipped_bit_at_many_offsets_of_a_blob_is_a_miss_and_heals(store, draft):
    given = draft(blobs={"raw": os.urandom(400), "zlib": b"abc" * 500})
    manifest = store.publish(given).manifest
    for name in ("raw", "zlib"):
        path = blob_path(store, manifest, name)
        size = path.stat().st_size
        for position in range(0, size, max(1, size // 12)):
            data = bytearray(path.read_bytes())
            data[position] ^= 0x10
            path.write_bytes(data)
            answer = store.read(manifest, [name])
            assert isinstance(answer, Miss)
            assert "digest mismatch" in answer.reason
            assert not path.exists()
            assert isinstance(store.publish(given), Published)
            assert store.read(manifest, [name])[name] == given.blobs[name]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("which", ["manifest", "blob"])
def test_a_truncated_file_is_a_miss_and_heals(store, draft, which, share):
    manifest = store.publish(given := draft()).manifest
    path = manifest_path(store, manifest)
    if which == "blob":
        path = blob_path(store, manifest, "program")
    os.truncate(path, int(path.stat().st_size * share))
    if which == "manifest":
        assert store.candidates(given.key).manifests == ()
    else:
        assert isinstance(store.read(manifest, ["program"]), Miss)
    assert not path.exists()
    assert isinstance(store.publish(given), Published)
    assert store.read(manifest, ["program"])["program"] == given.blobs["program"]


def test_a_publish_replaces_a_bad_blob_that_nobody_has_read_yet(store, draft):
    manifest = store.publish(given := draft()).manifest
    path = blob_path(store, manifest, "text")
    path.write_bytes(bytes(path.stat().st_size))
    store.publish(given)
    assert store.read(manifest, ["text"])["text"] == given.blobs["text"]


def test_a_zero_filled_manifest_of_the_right_size_is_refused(store, publish):
    manifest = publish(store)
    path = manifest_path(store, manifest)
    path.write_bytes(bytes(path.stat().st_size))
    assert store.candidates(manifest.key).manifests == ()


def test_a_deleted_blob_is_a_miss_that_names_it(store, publish):
    manifest = publish(store)
    blob_path(store, manifest, "program").unlink()
    answer = store.read(manifest, ["program"])
    assert isinstance(answer, Miss)
    assert "program" in answer.reason
    assert "ENOENT" in answer.reason


def test_a_deleted_blob_is_written_again_by_the_next_publish(store, draft):
    manifest = store.publish(given := draft()).manifest
    blob_path(store, manifest, "program").unlink()
    store.publish(given)
    assert store.read(manifest, given.blobs) == given.blobs


def test_swapped_blobs_of_equal_size_are_refused(store, draft):
    given = draft(blobs={"a": os.urandom(100), "b": os.urandom(100)})
    manifest = store.publish(given).manifest
    a, b = blob_path(store, manifest, "a"), blob_path(store, manifest, "b")
    data = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(data)
    assert isinstance(store.read(manifest, ["a"]), Miss)
    assert isinstance(store.read(manifest, ["b"]), Miss)


def test_a_manifest_moved_to_another_key_is_refused(store, publish):
    one, other = publish(store, 1), publish(store, 2)
    shutil.copy(manifest_path(store, one), manifest_path(store, other))
    found = store.candidates(other.key)
    assert found.manifests == ()
    assert "another entry" in found.refused[0].reason
    shutil.copy(manifest_path(store, one), manifest_path(store, other).parent / one.entry)
    assert store.candidates(other.key).manifests == ()


def test_a_manifest_under_another_entrys_name_is_refused(store, publish):
    one, other = publish(store, 1), publish(store, 1, about={"x": 2})
    shutil.copy(manifest_path(store, one), manifest_path(store, other))
    assert store.candidates(one.key).manifests == (one,)


def test_a_symbolic_link_in_place_of_a_file_is_not_followed(store, publish, tmp_path):
    manifest = publish(store)
    for path in (manifest_path(store, manifest), blob_path(store, manifest, "program")):
        copy = tmp_path / path.name
        path.rename(copy)
        path.symlink_to(copy)
    found = store.candidates(manifest.key)
    assert found.manifests == ()
    assert "ELOOP" in found.refused[0].reason
    assert isinstance(store.read(manifest, ["program"]), Miss)


def test_a_pipe_or_folder_in_place_of_a_file_is_refused_at_once(store, publish):
    manifest = publish(store)
    path = blob_path(store, manifest, "program")
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in store.read(manifest, ["program"]).reason
    path.unlink()
    path.mkdir()
    assert "not a regular file" in store.read(manifest, ["program"]).reason


def test_foreign_names_in_a_key_folder_are_nobodys_entries(store, publish):
    manifest = publish(store)
    (manifest_path(store, manifest).parent / ".nfs0001").write_bytes(b"x")
    found = store.candidates(manifest.key)
    assert found.manifests == (manifest,)
    assert found.refused == ()


def forged(store, manifest, **changes):
    """A manifest with a valid digest and id that says something no publisher says."""
    fields = msgpack.unpackb(encode(manifest)[:-32])
    fields.update(changes)
    fields["entry"] = manifest_module.entry_id(
        fields["key"], fields["kind"], fields["factors"], fields["about"], fields["blobs"]
    )
    body = msgpack.packb(fields)
    return body + hashlib.sha256(FORMAT + body).digest()


KEY = "0" * 64
BLOB = ["a", "0" * 64, 10, 10, "raw"]


@pytest.mark.parametrize(
    "changes",
    [
        {"blobs": [["../a", *BLOB[1:]]]},
        {"blobs": [["a", "../" + "0" * 61, 10, 10, "raw"]]},
        {"blobs": [["a", "0" * 64, -1, -1, "raw"]]},
        {"blobs": [["a", "0" * 64, 10, 1 << 40, "zlib"]]},
        {"blobs": [["a", "0" * 64, 10, 11, "raw"]]},
        {"blobs": [["a", "0" * 64, True, True, "raw"]]},
        {"blobs": [["a", "0" * 64, 10, 10, "exec"]]},
        {"blobs": [BLOB, BLOB]},
        {"blobs": [["b", *BLOB[1:]], BLOB]},
        {"blobs": {}},
        {"factors": [["a", "b", 3]]},
        {"factors": "abc"},
        {"about": []},
        {"about": {b"x": 1}},
        {"created": 5},
        {"created": float("nan")},
        {"cost_seconds": -1.0},
        {"kind": ["graph"]},
        {"identity": "/etc"},
        {"key": "0" * 31},
        {"extra": 1},
    ],
)
def test_a_manifest_with_a_valid_digest_and_odd_contents_is_refused(store, publish, changes):
    with pytest.raises(Malformed):
        decode(forged(store, publish(store), **changes), KEY)


@given(data=st.binary(max_size=200))
@settings(max_examples=300)
def test_no_bytes_with_a_valid_digest_raise_anything_but_a_refusal(data):
    with pytest.raises(Malformed):
        decode(data + hashlib.sha256(FORMAT + data).digest(), KEY)


def test_a_blob_that_is_larger_than_announced_is_cut_short_and_its_manifest_quarantined(
    store, publish
):
    manifest = publish(store, blobs={"a": b"\0" * 100_000})
    (ref,) = manifest.blobs
    rows = [["a", ref.sha256, ref.stored_size, 5000, "zlib"]]
    data = forged(store, manifest, blobs=rows)
    liar = decode(data, manifest.key)
    path = manifest_path(store, liar)
    path.write_bytes(data)
    path.chmod(0o600)
    answer = store.read(liar, ["a"])
    assert isinstance(answer, Miss)
    assert "5000 bytes" in answer.reason
    assert not path.exists()
    assert store.read(manifest, ["a"]) == {"a": b"\0" * 100_000}


def test_quarantine_by_the_caller_takes_the_entry_away_with_its_reason(store, draft):
    manifest = store.publish(given := draft()).manifest
    store.quarantine(manifest, "op aten::x is unknown")
    assert store.candidates(given.key).manifests == ()
    notes = [p for p in (store.root / "v1/quarantine").iterdir() if p.suffix == ".reason"]
    assert "aten::x" in notes[0].read_text()
    assert str(store.root) not in notes[0].read_text()
    assert isinstance(store.publish(given), Published)
    assert store.candidates(given.key).manifests


def test_the_quarantine_does_not_grow_without_end(store, draft):
    for _ in range(80):
        store.quarantine(store.publish(draft()).manifest, "again")
    assert len(quarantined(store)) <= 65


def test_quarantine_spares_a_good_file_that_has_replaced_the_bad_one(store, publish):
    from npugx_cache.store.content.files import quarantine

    manifest = publish(store)
    path = manifest_path(store, manifest)
    seen = path.stat()
    fresh = path.with_suffix(".new")
    shutil.copy(path, fresh)
    fresh.rename(path)
    quarantine(store._folder, str(path), "old news", seen)
    assert store.candidates(manifest.key).manifests == (manifest,)
