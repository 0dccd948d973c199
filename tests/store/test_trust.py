from __future__ import annotations

import os

import pytest

from npugx_cache.config import Settings
from npugx_cache.store import NotStored, Store, Unusable, open_store

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing owners needs root")
STRANGER = 65534


def opening(path, **settings):
    return open_store(Settings(cache_dir=path, **settings))


@pytest.mark.parametrize(("mode", "remedy"), [(0o777, "chmod o-w"), (0o770, "chmod g-w")])
def test_a_root_that_others_can_write_is_refused_with_the_remedy(tmp_path, mode, remedy):
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(mode)
    answer = opening(path)
    assert isinstance(answer, Unusable)
    assert remedy in answer.reason
    assert str(path) in answer.reason


def test_a_group_writable_root_is_accepted_under_group_trust_only(tmp_path):
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o770)
    assert isinstance(opening(path, trust="group"), Store)
    path.chmod(0o777)
    assert isinstance(opening(path, trust="group"), Unusable)


def test_group_trust_publishes_files_that_members_can_write(tmp_path, publish):
    umask = os.umask(0o002)
    try:
        store = opening(tmp_path / "cache", trust="group")
        manifest = publish(store)
    finally:
        os.umask(umask)
    path = store.root / "v1/ac/00" / manifest.key / manifest.entry
    assert path.stat().st_mode & 0o777 == 0o660
    assert path.parent.stat().st_mode & 0o777 == 0o770
    assert store.candidates(manifest.key).manifests == (manifest,)


@as_root
def test_a_root_of_another_user_is_refused(tmp_path):
    path = tmp_path / "theirs"
    path.mkdir(mode=0o750)
    os.chown(path, STRANGER, STRANGER)
    answer = opening(path)
    assert isinstance(answer, Unusable)
    assert f"uid {STRANGER}" in answer.reason
    assert "chown" in answer.reason


def test_a_world_writable_parent_without_sticky_bit_is_refused(tmp_path):
    parent = tmp_path / "open"
    (parent / "cache").mkdir(parents=True, mode=0o700)
    parent.chmod(0o777)
    answer = opening(parent / "cache")
    assert isinstance(answer, Unusable)
    assert "chmod +t" in answer.reason
    parent.chmod(0o1777)
    assert isinstance(opening(parent / "cache"), Store)


def test_a_link_of_ones_own_to_the_root_is_followed(tmp_path, publish):
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    publish(opening(tmp_path / "link"))
    assert (real / "v1/ac").is_dir()


@as_root
def test_a_link_planted_by_a_stranger_is_refused(tmp_path):
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(real)
    os.lchown(link, STRANGER, STRANGER)
    answer = opening(link)
    assert isinstance(answer, Unusable)
    assert "planted" in answer.reason


def test_a_loop_of_links_is_unusable_and_nothing_hangs(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert isinstance(opening(tmp_path / "a"), Unusable)


def test_a_part_of_the_store_that_others_can_write_is_refused(store):
    (store.root / "v1/ac").chmod(0o777)
    answer = opening(store.root)
    assert isinstance(answer, Unusable)
    assert "v1/ac" in answer.reason


def test_a_writable_key_folder_or_file_is_a_refusal_and_not_a_hit(store, publish):
    manifest = publish(store)
    folder = store.root / "v1/ac/00" / manifest.key
    folder.chmod(0o777)
    assert "not trusted" in store.candidates(manifest.key).missing_reason
    folder.chmod(0o700)
    (folder / manifest.entry).chmod(0o666)
    assert "not trusted" in store.candidates(manifest.key).missing_reason
    (folder / manifest.entry).chmod(0o600)
    blob = next((store.root / "v1/cas").rglob("?" * 64))
    blob.chmod(0o620)
    name = next(ref.name for ref in manifest.blobs if ref.sha256 == blob.name)
    assert "not trusted" in store.read(manifest, [name]).reason


@as_root
def test_a_manifest_of_a_stranger_is_a_refusal(store, publish):
    manifest = publish(store)
    os.chown(store.root / "v1/ac/00" / manifest.key / manifest.entry, STRANGER, STRANGER)
    assert f"uid {STRANGER}" in store.candidates(manifest.key).missing_reason


def test_a_publish_heals_a_file_that_was_not_trusted(store, draft):
    given = draft()
    manifest = store.publish(given).manifest
    for path in store.root.rglob("?" * 64):
        if path.is_file():
            path.chmod(0o666)
    store.publish(given)
    (found,) = store.candidates(given.key).manifests
    assert found.entry == manifest.entry
    assert store.read(found, given.blobs) == given.blobs


def test_a_root_that_loses_trust_while_open_is_not_published_to(store, draft):
    store.root.chmod(0o777)
    answer = store.publish(draft())
    assert isinstance(answer, NotStored)
    assert "chmod" in answer.reason


def test_a_switched_off_cache_and_a_file_in_its_place_are_unusable(tmp_path):
    assert "switched off" in opening(tmp_path, mode="off").reason
    (tmp_path / "file").write_text("x")
    assert isinstance(opening(tmp_path / "file"), Unusable)
    assert isinstance(opening(tmp_path / "file/below"), Unusable)
