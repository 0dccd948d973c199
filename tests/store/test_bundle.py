from __future__ import annotations

import contextlib
import hashlib
import io
import os
import subprocess
import tarfile
import tracemalloc

import pytest
from hypothesis import given as given_by
from hypothesis import settings
from hypothesis import strategies as st

from npugx_cache.store import Listed
from npugx_cache.store.format.signing import new_secret
from npugx_cache.store.tools import audit, bundle


def packed(store, manifests=None):
    out = io.BytesIO()
    if manifests is None:
        manifests = [item.manifest for item in store.listing() if isinstance(item, Listed)]
    report = bundle.pack(store.folder, [(m.key, m.entry) for m in manifests], out)
    return out.getvalue(), report


def taken(store, data, *, sign=False):
    return bundle.unpack(store.folder, io.BytesIO(data), sign=sign)


@pytest.fixture
def other(open_at, tmp_path):
    return open_at(tmp_path / "other")


def test_a_bundle_carries_entries_and_every_one_of_them_hits(store, other, draft):
    drafts = [draft(number) for number in range(3)]
    for each in drafts:
        store.publish(each)
    data, report = packed(store)
    assert len(report.entries) == 3
    again = taken(other, data)
    assert again.refused == []
    assert {m.entry for m in again.entries} == {m.entry for m in report.entries}
    for each in drafts:
        (manifest,) = other.candidates(each.key).manifests
        assert other.read(manifest, each.blobs) == each.blobs
        assert other.siblings(manifest.identity)


def test_two_exports_of_the_same_entries_are_the_same_bytes(store, publish, open_at, tmp_path):
    for number in range(3):
        publish(store, number)
    first, _ = packed(store)
    copy = open_at(tmp_path / "copy")
    taken(copy, first)
    entries = [item.manifest for item in copy.listing()]
    assert packed(copy, entries[::-1])[0] == first
    assert b"root" not in first[:512]


def test_plain_tar_makes_a_store_of_a_bundle(store, publish, open_at, tmp_path):
    manifest = publish(store)
    root = tmp_path / "untarred"
    root.mkdir(mode=0o700)
    (tmp_path / "b.tar").write_bytes(packed(store)[0])
    subprocess.run(["tar", "-xf", tmp_path / "b.tar", "-C", root], check=True, umask=0o022)
    found = open_at(root)
    assert found.candidates(manifest.key).manifests == (manifest,)
    assert set(found.read(manifest, ["program", "text"])) == {"program", "text"}


def test_a_tar_made_by_tar_itself_can_be_imported(store, publish, other, tmp_path):
    manifest = publish(store)
    subprocess.run(["tar", "-cf", tmp_path / "b.tar", "-C", store.root, "."], check=True)
    report = taken(other, (tmp_path / "b.tar").read_bytes())
    assert other.candidates(manifest.key).manifests == (manifest,)
    assert all("cas/" not in name and "ac/" not in name for name, _ in report.refused)


def test_damaged_entries_are_left_out_of_a_bundle(store, publish):
    kept = publish(store, 1)
    bad = publish(store, 2)
    for ref in bad.blobs:
        path = store.root / "v1/cas" / ref.sha256[:2] / ref.sha256
        path.write_bytes(bytes(ref.stored_size))
    _, report = packed(store, [bad, kept])
    assert report.entries == [kept]
    assert report.refused[0][0] == bad.entry


def tar_of(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def member(name, **changes):
    info = tarfile.TarInfo(name)
    for attribute, value in changes.items():
        setattr(info, attribute, value)
    return info


@pytest.mark.parametrize(
    "info",
    [
        member("../evil"),
        member("/etc/evil"),
        member("v1/cas/aa/../../evil"),
        member("v1/locks/aa.lock"),
        member("v1/cas/00/" + "0" * 64, type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("v1/cas/00/" + "0" * 64, type=tarfile.LNKTYPE, linkname="v1/x"),
        member("v1/cas/00/" + "0" * 64, type=tarfile.FIFOTYPE),
    ],
)
def test_a_hostile_member_is_refused_and_leaves_nothing(other, tmp_path, info):
    before = sorted(tmp_path.rglob("*"))
    report = taken(other, tar_of((info, b"" if info.type != tarfile.REGTYPE else b"x")))
    assert len(report.refused) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_swapped_blobs_and_manifests_of_others_are_refused(store, publish, other):
    first, second = publish(store, 1), publish(store, 2)
    data, _ = packed(store)
    for one, two in (
        (first.entry, second.entry),
        (first.blobs[0].sha256, second.blobs[0].sha256),
    ):
        swapped = data.replace(one.encode(), b"#" * 64).replace(two.encode(), one.encode())
        try:
            taken(other, swapped.replace(b"#" * 64, two.encode()))
        except tarfile.TarError:
            continue
    for manifest in (first, second):
        for found in other.candidates(manifest.key).manifests:
            blobs = other.read(found, ["program", "text"])
            assert blobs == store.read(manifest, ["program", "text"])


@given_by(st.data())
@settings(max_examples=150)
def test_damage_anywhere_in_a_bundle_never_becomes_an_entry(tmp_path_factory, data):
    from npugx_cache.config import Settings
    from npugx_cache.store import Draft, open_store

    place = tmp_path_factory.mktemp("bundle")
    store = open_store(Settings(cache_dir=place / "a"))
    blobs = {"x": b"0123456789" * 20}
    key = "ab" * 32
    store.publish(
        Draft(
            key=key, identity=key, kind="graph", cost_seconds=0.0, factors=(), about={}, blobs=blobs
        )
    )
    raw = bytearray(packed(store)[0])
    kind = data.draw(st.sampled_from(["flip", "cut", "swap"]))
    position = data.draw(st.integers(0, len(raw) - 1))
    if kind == "flip":
        raw[position] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del raw[position:]
    else:
        other = data.draw(st.integers(0, len(raw) // 512 - 1)) * 512
        block = position // 512 * 512
        raw[block : block + 512], raw[other : other + 512] = (
            raw[other : other + 512],
            raw[block : block + 512],
        )
    target = open_store(Settings(cache_dir=place / "b"))
    with contextlib.suppress(tarfile.TarError, EOFError, ValueError, OverflowError):
        taken(target, bytes(raw))
    for manifest in target.candidates(key).manifests:
        assert target.read(manifest, blobs) == blobs


def test_a_signed_store_takes_only_what_is_signed_unless_the_importer_vouches(
    store, publish, open_at, tmp_path
):
    key = tmp_path / "key"
    key.write_text(new_secret())
    key.chmod(0o600)
    manifest = publish(store)
    data, _ = packed(store)
    signed = open_at(tmp_path / "signed", trust="signed", key_file=key)
    assert "not signed" in taken(signed, data).refused[0][1]
    assert signed.candidates(manifest.key).manifests == ()
    assert taken(signed, data, sign=True).refused == []
    assert signed.candidates(manifest.key).manifests == (manifest,)
    # Signatures travel with a bundle.
    third = open_at(tmp_path / "third", trust="signed", key_file=key)
    assert taken(third, packed(signed)[0]).refused == []
    assert third.candidates(manifest.key).manifests == (manifest,)


def test_a_bundle_names_no_host_user_or_time(store, publish):
    publish(store)
    with tarfile.open(fileobj=io.BytesIO(packed(store)[0])) as tar:
        for info in tar:
            assert (info.uid, info.gid, info.uname, info.gname, info.mtime) == (0, 0, "", "", 0)
            assert hashlib.sha256(os.fsencode(info.name)).digest()


def blobs_in(store):
    return {path.name for path in (store.root / "v1/cas").rglob("?" * 64)}


def test_blobs_of_refused_entries_are_removed_and_those_that_were_there_stay(
    store, publish, other, draft
):
    shared = os.urandom(300)
    publish(store, 1, blobs={"a": shared, "b": os.urandom(300)})
    publish(store, 2, blobs={"c": os.urandom(300)})
    kept = other.publish(draft(3, blobs={"a": shared})).manifest
    data, _ = packed(store)
    broken = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(data)) as tar,
        tarfile.open(fileobj=broken, mode="w") as out,
    ):
        for each in tar:
            content = tar.extractfile(each).read()
            if each.name.startswith("v1/ac/"):
                content = b"#" + content[1:]
            out.addfile(each, io.BytesIO(content))
    report = taken(other, broken.getvalue())
    assert report.entries == []
    assert (report.blobs, len(report.refused)) == (1, 2)
    assert blobs_in(other) == {ref.sha256 for ref in kept.blobs}


def test_a_bundle_that_ends_early_leaves_no_blobs(store, publish, other):
    publish(store, 1)
    data, _ = packed(store)
    with pytest.raises(tarfile.TarError):
        taken(other, data[: data.index(b"v1/ac/") + 600])
    assert blobs_in(other) == set()


def test_an_entry_that_was_there_already_is_counted(store, publish, other):
    publish(store, 1)
    first, _ = packed(store)
    publish(store, 2)
    both, _ = packed(store)
    assert taken(other, first).known == 0
    report = taken(other, both)
    assert (len(report.entries), report.known) == (2, 1)


def test_a_member_that_is_no_blob_is_not_held_in_memory(store):
    size, digest = 48 << 20, "ab" * 32
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        member = tarfile.TarInfo(f"v1/cas/ab/{digest}")
        member.size = size
        tar.addfile(member, io.BytesIO(bytes(size)))
    out.seek(0)
    tracemalloc.start()
    report = bundle.unpack(store.folder, out, sign=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [reason for _, reason in report.refused] == ["digest mismatch"]
    assert peak < size / 4


@pytest.mark.parametrize("step", ["export", "import", "import again", "verify"])
def test_a_large_blob_is_not_held_in_memory(store, publish, other, tmp_path, step):
    blob = tmp_path / "bundle.tar"
    publish(store, blobs={f"b{number}": os.urandom(8 << 20) for number in range(2)})
    places = [(m.manifest.key, m.manifest.entry) for m in store.listing()]

    def export():
        with blob.open("wb") as out:
            assert bundle.pack(store.folder, places, out).refused == []

    def bring():
        with blob.open("rb") as source:
            assert bundle.unpack(other.folder, source, sign=False).refused == []

    def check():
        assert audit.verify(other.folder, repair=False).bad == []

    steps = {"export": export, "import": bring, "import again": bring, "verify": check}
    for name in steps:
        if name == step:
            break
        steps[name]()
    tracemalloc.start()
    try:
        steps[step]()
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()
    blobs = [(path.name, path.read_bytes()) for path in (other.root / "v1/cas").glob("*/*")]
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in blobs)
