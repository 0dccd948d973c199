from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from npugx_cache.config import Settings, load
from npugx_cache.store import (
    FolderStore,
    Locked,
    Miss,
    PrunePolicy,
    Published,
    Store,
    Unusable,
    open_folder,
    open_store,
)
from npugx_cache.store.format.signing import new_secret
from npugx_cache.store.tiers import Layered


@pytest.fixture
def folders(tmp_path):
    return {name: tmp_path / name for name in ("local", "shared", "baked")}


@pytest.fixture
def layered(folders):
    """Open all three layers, or those named."""

    def opening(*names, **settings):
        names = names or ("local", "baked")
        answer = open_store(
            Settings(
                cache_dir=folders["shared"],
                local_dir=folders["local"] if "local" in names else None,
                baked_dirs=(folders["baked"],) if "baked" in names else (),
                **settings,
            )
        )
        assert isinstance(answer, Store), answer
        return answer

    return opening


def alone(path, **settings):
    answer = open_folder(Settings(cache_dir=path, **settings))
    assert isinstance(answer, FolderStore)
    return answer


def entries(path):
    return {item.manifest.entry for item in alone(path).listing()}


def test_every_kind_of_store_is_a_store(store, layered):
    assert isinstance(store, Store)
    assert isinstance(layered("local"), Store)
    assert isinstance(layered("local"), Layered)


def test_a_baked_layer_hits_and_is_never_written(folders, layered, draft):
    alone(folders["baked"]).publish(given := draft())
    before = sorted((path, path.stat().st_mtime_ns) for path in folders["baked"].rglob("*"))
    store = layered("baked")
    (manifest,) = store.candidates(given.key).manifests
    assert store.read(manifest, given.blobs) == given.blobs
    assert store.siblings(given.identity) == (manifest,)
    assert store.find(manifest.entry[:12]) == manifest
    store.record_hit(manifest)
    assert isinstance(store.publish(draft(1)), Published)
    store.flush()
    store.prune(PrunePolicy(everything=True))
    assert before == sorted((p, p.stat().st_mtime_ns) for p in folders["baked"].rglob("*"))
    assert entries(folders["shared"]) == set()


def test_a_hit_in_the_shared_folder_fills_the_local_one(folders, layered, draft):
    alone(folders["shared"]).publish(given := draft())
    store = layered("local")
    (manifest,) = store.candidates(given.key).manifests
    assert entries(folders["local"]) == set()
    store.record_hit(manifest)
    assert entries(folders["local"]) == {manifest.entry}
    shutil.rmtree(folders["shared"])
    again = layered("local")
    assert again.candidates(given.key).manifests == (manifest,)
    assert again.read(manifest, given.blobs) == given.blobs


def place(fd):
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def test_what_the_local_folder_has_is_not_read_from_the_shared_one(
    folders, layered, draft, monkeypatch
):
    store = layered("local")
    store.publish(given := draft())
    from npugx_cache.store.io import syscalls

    opened = []
    real = syscalls.open_read
    monkeypatch.setattr(
        syscalls, "open_read", lambda name, at: opened.append(place(at)) or real(name, at)
    )
    (manifest,) = store.candidates(given.key).manifests
    assert store.read(manifest, given.blobs) == given.blobs
    assert opened
    assert not [path for path in opened if str(folders["shared"]) in path]


def test_a_publish_goes_to_the_shared_and_the_local_folder(folders, layered, draft):
    answer = layered("local").publish(draft())
    assert entries(folders["shared"]) == entries(folders["local"]) == {answer.manifest.entry}


def test_a_damaged_local_copy_is_answered_by_the_shared_folder_and_healed(folders, layered, draft):
    store = layered("local")
    manifest = store.publish(given := draft()).manifest
    for ref in manifest.blobs:
        path = folders["local"] / "v1/cas" / ref.sha256[:2] / ref.sha256
        path.write_bytes(bytes(ref.stored_size))
    assert store.read(manifest, given.blobs) == given.blobs
    store.quarantine(manifest, "test")
    assert store.candidates(given.key).manifests == ()


def test_one_entry_in_several_layers_is_listed_and_returned_once(folders, layered, draft):
    given = draft()
    for name in folders:
        alone(folders[name]).publish(given)
    store = layered()
    assert len(store.candidates(given.key).manifests) == 1
    assert len(list(store.listing())) == 1
    assert len(store.siblings(given.identity)) == 1


def test_a_miss_in_every_layer_says_why(layered):
    store = layered()
    assert store.candidates("ab" * 32).missing_reason == "no entry under this key"
    assert isinstance(store.find("abcdef"), Miss)


def test_workers_of_different_nodes_share_the_lock_of_the_shared_folder(folders, layered):
    with (
        alone(folders["shared"]).lock("ab" * 32, wait=0),
        layered("local").lock("ab" * 32, wait=0) as answer,
    ):
        assert not isinstance(answer, Locked)


def test_a_tier_that_can_not_be_used_is_left_out_with_one_warning(folders, layered, draft, caplog):
    folders["local"].mkdir()
    folders["local"].chmod(0o777)
    alone(folders["baked"]).publish(given := draft())
    folders["shared"].write_text("a file in its place")
    with caplog.at_level(logging.WARNING, logger="npugx_cache"):
        store = layered()
        assert len(store.candidates(given.key).manifests) == 1
    assert sum("not used" in line for line in caplog.messages) == 2
    assert store.readonly is not None


def test_without_any_usable_tier_the_reason_is_that_of_the_main_folder(folders, tmp_path):
    folders["shared"].write_text("a file")
    answer = open_store(Settings(cache_dir=folders["shared"], baked_dirs=(tmp_path / "missing",)))
    assert isinstance(answer, Unusable)
    assert "shared" in answer.reason


def test_a_read_only_shared_folder_still_fills_the_local_one(folders, layered, draft):
    alone(folders["shared"]).publish(given := draft())
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    for path in folders["shared"].rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    store = layered("local")
    (manifest,) = store.candidates(given.key).manifests
    store.record_hit(manifest)
    assert entries(folders["local"]) == {manifest.entry}
    with store.lock("ab" * 32, wait=0) as answer:
        assert isinstance(answer, Locked)


def test_signatures_travel_to_the_local_folder(folders, layered, draft, tmp_path):
    key = tmp_path / "key"
    key.write_text(new_secret())
    key.chmod(0o600)
    signed = {"trust": "signed", "key_file": key}
    alone(folders["shared"], **signed).publish(given := draft())
    store = layered("local", **signed)
    (manifest,) = store.candidates(given.key).manifests
    store.record_hit(manifest)
    assert alone(folders["local"], **signed).candidates(given.key).manifests == (manifest,)


def test_the_local_folder_keeps_to_its_size(folders, layered, draft):
    for number in range(20):
        alone(folders["shared"]).publish(draft(number, blobs={"a": os.urandom(10_000)}))
    store = layered("local", max_size=60_000)
    for number in range(20):
        (manifest,) = store.candidates(f"{number:064x}").manifests
        store.record_hit(manifest)
    assert 1 <= len(entries(folders["local"])) < 8
    assert len(entries(folders["shared"])) == 20


def test_the_environment_names_the_layers(tmp_path):
    settings = load(
        environ={
            "NPUGX_CACHE_DIR": str(tmp_path / "shared:odd"),
            "NPUGX_CACHE_LOCAL_DIR": str(tmp_path / "local:odd"),
            "NPUGX_CACHE_BAKED_DIR": os.pathsep.join(
                [str(tmp_path / "a"), "", str(tmp_path / "b")]
            ),
        }
    )
    assert settings.cache_dir == tmp_path / "shared:odd"
    assert settings.local_dir == tmp_path / "local:odd"
    assert settings.baked_dirs == (tmp_path / "a", tmp_path / "b")
    plain = load(environ={"NPUGX_CACHE_DIR": str(tmp_path)})
    assert (plain.local_dir, plain.baked_dirs) == (None, ())
