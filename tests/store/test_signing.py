from __future__ import annotations

import os
import shutil

import pytest

from npugx_cache.config import Settings, load
from npugx_cache.store import Store, Unusable, open_store
from npugx_cache.store.format import manifest
from npugx_cache.store.format.manifest import decode, encode
from npugx_cache.store.format.plain import Malformed
from npugx_cache.store.format.signing import Unsigned, new_secret

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing owners needs root")
STRANGER = 65534


@pytest.fixture
def key_file(tmp_path):
    def make(name="key"):
        path = tmp_path / name
        path.write_text(new_secret())
        path.chmod(0o600)
        return path

    return make


@pytest.fixture
def signed(open_at, key_file):
    return open_at(trust="signed", key_file=key_file())


def path_of(store, entry):
    return store.root / "v1/ac" / entry.key[:2] / entry.key / entry.entry


def test_a_signed_entry_is_read_back_and_needs_no_owner(signed, publish, open_at, tmp_path):
    entry = publish(signed)
    for path in (signed.root, *signed.root.rglob("*")):
        path.chmod(0o777)
        if os.geteuid() == 0:
            os.chown(path, STRANGER, STRANGER)
    again = open_at(trust="signed", key_file=tmp_path / "key")
    assert again.candidates(entry.key).manifests == (entry,)
    assert set(again.read(entry, ["program", "text"])) == {"program", "text"}


def test_a_folder_that_everybody_can_write_can_be_a_signed_store(tmp_path, open_at, key_file):
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(0o777)
    assert open_at(path, trust="signed", key_file=key_file()).readonly is None


def refusal_without_decoding(store, entry, monkeypatch):
    def decoded(_):
        raise AssertionError("decoded before its signature was verified")

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "unpack", decoded)
        (refused,) = store.candidates(entry.key).refused
    return refused.reason


def test_an_unsigned_entry_is_a_miss_that_says_so_and_is_never_decoded(
    store, publish, open_at, key_file, monkeypatch
):
    entry = publish(store)
    signed = open_at(trust="signed", key_file=key_file())
    assert "not signed" in refusal_without_decoding(signed, entry, monkeypatch)
    # Not quarantined: those who trust the folder itself still use it.
    assert store.candidates(entry.key).manifests == (entry,)
    publish(signed, blobs={name: store.read(entry, [name])[name] for name in ("program", "text")})
    assert signed.candidates(entry.key).manifests


def test_an_entry_signed_with_another_key_is_a_miss_and_is_never_decoded(
    signed, publish, open_at, key_file, monkeypatch
):
    entry = publish(signed)
    other = open_at(trust="signed", key_file=key_file("other"))
    assert "another key" in refusal_without_decoding(other, entry, monkeypatch)
    assert signed.candidates(entry.key).manifests == (entry,)


def test_an_entry_replayed_under_another_key_is_a_miss_and_is_never_decoded(
    signed, publish, monkeypatch
):
    entry = publish(signed)
    other = publish(signed, 1)
    shutil.copy(path_of(signed, entry), path_of(signed, other))
    assert "another place" in refusal_without_decoding(signed, other, monkeypatch)


def test_a_manifest_bound_to_other_blobs_by_a_stranger_is_refused(signed, publish):
    entry = publish(signed)
    data = path_of(signed, entry).read_bytes()
    digest = entry.blobs[0].sha256.encode()
    forged = data.replace(digest, b"0" * 64)
    assert forged != data
    # An attacker recomputes the plain digests; the signature is what is out of reach.
    import hashlib

    from npugx_cache.store.format.signing import SIGNED

    content = forged[:-32]
    path_of(signed, entry).write_bytes(content + hashlib.sha256(SIGNED + content).digest())
    (refused,) = signed.candidates(entry.key).refused
    assert "not trusted" in refused.reason


def test_a_blob_exchanged_by_a_stranger_is_a_miss(signed, publish):
    entry = publish(signed)
    ref = entry.blobs[0]
    path = signed.root / "v1/cas" / ref.sha256[:2] / ref.sha256
    path.write_bytes(bytes(ref.stored_size))
    assert "digest mismatch" in signed.read(entry, [ref.name]).reason


def test_a_flipped_bit_at_every_byte_of_a_signed_manifest_is_refused(store, publish):
    entry = publish(store)
    secret = b"s" * 32
    data = encode(entry, secret)
    assert decode(data, entry.key, secret) == entry
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        with pytest.raises((Malformed, Unsigned)):
            decode(bytes(flipped), entry.key, secret)


def test_a_damaged_signed_manifest_goes_to_quarantine_and_the_next_publish_heals(signed, draft):
    given = draft()
    entry = signed.publish(given).manifest
    path_of(signed, entry).write_bytes(path_of(signed, entry).read_bytes()[:-1])
    assert "digest mismatch" in signed.candidates(entry.key).missing_reason
    assert not path_of(signed, entry).exists()
    signed.publish(given)
    assert signed.read(signed.candidates(entry.key).manifests[0], given.blobs) == given.blobs


def test_whoever_trusts_the_owner_reads_signed_entries_without_the_key(signed, publish, open_at):
    umask = os.umask(0o022)
    os.umask(umask)
    entry = publish(signed)
    assert open_at().candidates(entry.key).manifests == (entry,)


@pytest.fixture
def everyday_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes_in(store):
    """The permissions of all files and of all folders below the store's own."""
    paths = [path for path in store.root.rglob("*") if path.name != "CACHEDIR.TAG"]
    return (
        {path.stat().st_mode & 0o777 for path in paths if path.is_file()},
        {path.stat().st_mode & 0o777 for path in paths if path.is_dir()},
    )


@pytest.mark.parametrize("there", [None, 0o755, 0o700])
@pytest.mark.usefixtures("everyday_umask")
def test_nobody_else_reads_a_signed_store_unless_that_is_asked_for(
    open_at, key_file, publish, root, there
):
    if there is not None:
        root.mkdir(mode=there)
    store = open_at(trust="signed", key_file=key_file())
    publish(store)
    with store.lock("ab" * 32, wait=0):
        assert modes_in(store) == ({0o600}, {0o700})
    assert there is not None or store.root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("mode", "files", "folders"), [(0o2770, 0o640, 0o750), (0o1777, 0o644, 0o755)]
)
@pytest.mark.usefixtures("everyday_umask")
def test_who_can_write_a_signed_store_can_read_it(
    open_at, key_file, publish, root, mode, files, folders
):
    """The umask of the one who writes takes away what it takes away everywhere."""
    root.mkdir()
    root.chmod(mode)
    store = open_at(trust="signed", key_file=key_file())
    publish(store)
    assert modes_in(store) == ({files}, {folders})


@pytest.mark.usefixtures("everyday_umask")
def test_a_signed_store_is_shared_with_readers_by_the_mode_of_its_folder_v1(
    open_at, key_file, publish, root
):
    key = key_file()
    (root / "v1").mkdir(parents=True)
    (root / "v1").chmod(0o755)
    store = open_at(trust="signed", key_file=key)
    publish(store)
    assert modes_in(store) == ({0o644}, {0o755})
    (root / "v1").chmod(0o700)
    entry = publish(open_at(trust="signed", key_file=key), 1)
    assert path_of(store, entry).stat().st_mode & 0o777 == 0o600


def unusable(root, key):
    answer = open_store(Settings(cache_dir=root, trust="signed", key_file=key))
    assert isinstance(answer, Unusable)
    assert not (root / "v1").exists()
    return answer.reason


def test_a_key_that_can_not_be_used_is_said_with_its_remedy(root, key_file):
    path = key_file()
    assert "npugx-cache key new" in unusable(root, None)
    assert "can't be read" in unusable(root, path.parent / "missing")
    path.chmod(0o640)
    assert "chmod 600" in unusable(root, path)
    path.chmod(0o600)
    path.write_text("secret")
    assert "holds no key" in unusable(root, path)
    assert "secret" not in unusable(root, path).removeprefix("NPUGX_CACHE_TRUST")
    root.mkdir()
    inside = shutil.copy(key_file("good"), root / "key")
    assert "lies in the cache" in unusable(root, inside)


@as_root
def test_a_key_file_of_a_stranger_is_refused(root, key_file):
    path = key_file()
    os.chown(path, STRANGER, STRANGER)
    assert f"uid {STRANGER}" in unusable(root, path)


def test_a_key_mounted_as_a_link_is_followed(root, key_file, open_at):
    path = key_file()
    (path.parent / "link").symlink_to(path)
    assert isinstance(open_at(trust="signed", key_file=path.parent / "link"), Store)


def test_the_secret_is_in_no_repr(signed):
    assert signed._folder.secret is not None
    assert repr(signed._folder.secret) not in repr(signed._folder)


def test_a_key_file_alone_asks_for_signatures(tmp_path):
    environ = {"NPUGX_CACHE_KEY_FILE": str(tmp_path / "key"), "NPUGX_CACHE_DIR": str(tmp_path)}
    assert load(environ=environ).trust == "signed"
    assert load(environ={**environ, "NPUGX_CACHE_TRUST": "private"}).trust == "private"
