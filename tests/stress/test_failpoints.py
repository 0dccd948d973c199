"""Killed at every system call; every error at every system call; and the next one heals."""

from __future__ import annotations

import errno
import io
import os
import shutil

import pytest

from npugx_cache.store import Miss, NotStored, PrunePolicy, PruneReport, Published
from npugx_cache.store.io import syscalls
from npugx_cache.store.tools import bundle

pytestmark = pytest.mark.thorough

MOST = 400
ERRORS = [
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.ESTALE,
    errno.ENOENT,
    errno.EMFILE,
]


def whole_or_nothing(store, given):
    """Every entry that a reader is offered is right, and a lost blob is a miss."""
    for manifest in store.candidates(given.key).manifests:
        found = store.read(manifest, given.blobs)
        assert found == given.blobs or isinstance(found, Miss)
    assert len(list((store.root / "v1").glob("tmp/*"))) <= 1


def heals(store, given):
    assert isinstance(store.publish(given), Published)
    (manifest,) = store.candidates(given.key).manifests
    assert store.read(manifest, given.blobs) == given.blobs


def emptied(store):
    for part in ("ac", "cas", "tmp", "quarantine"):
        shutil.rmtree(store.root / "v1" / part, ignore_errors=True)


def bundle_of(store, manifest):
    out = io.BytesIO()
    bundle.pack(store.folder, [(manifest.key, manifest.entry)], out)
    return out.getvalue()


def works(store, other, given):
    """What is killed or fails, by name, with what has to be there before."""
    kept = other.publish(given).manifest
    carried = bundle_of(other, kept)

    def present():
        store.publish(given)

    def damaged():
        manifest = store.publish(given).manifest
        for ref in manifest.blobs:
            path = store.root / "v1/cas" / ref.sha256[:2] / ref.sha256
            path.write_bytes(bytes(ref.stored_size))

    def read():
        for manifest in store.candidates(given.key).manifests:
            answer = store.read(manifest, given.blobs)
            assert answer == given.blobs or isinstance(answer, Miss)
        store.siblings(given.identity)

    def prune():
        assert isinstance(store.prune(PrunePolicy(everything=True)), PruneReport)

    def publish():
        assert isinstance(store.publish(given), (Published, NotStored))

    def fill():
        store.adopt(other, kept)

    def take():
        bundle.unpack(store.folder, io.BytesIO(carried), sign=False)

    def nothing():
        pass

    return {
        "publish": (nothing, publish),
        "publish many": (nothing, publish),
        "publish over damage": (damaged, publish),
        "prune": (present, prune),
        "import": (nothing, take),
        "fill": (nothing, fill),
        "quarantine": (damaged, read),
    }


NAMES = ["publish", "publish many", "publish over damage", "prune", "import", "fill", "quarantine"]
MANY = {f"b{number}": b"%d" % number * 50 for number in range(20)}


@pytest.mark.parametrize("name", NAMES)
def test_killed_at_every_call_it_leaves_a_whole_entry_or_none(opening, draft, failpoints, name):
    given = draft(blobs=MANY) if name == "publish many" else draft()
    store = opening()
    before, work = works(store, opening("other"), given)[name]
    for at in range(1, MOST):
        before()
        killed = failpoints.killed_at(at, work)
        whole_or_nothing(store, given)
        heals(store, given)
        emptied(store)
        if not killed:
            break
    assert not killed
    assert at > 10


def raising(number):
    def action():
        raise OSError(number, os.strerror(number))

    return action


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("name", NAMES)
def test_an_error_at_every_call_raises_nothing_into_the_caller(
    opening, draft, failpoints, name, number
):
    given = draft(blobs=MANY) if name == "publish many" else draft()
    store = opening()
    before, work = works(store, opening("other"), given)[name]
    for at in range(1, MOST):
        before()
        failpoints.arm(at, raising(number))
        try:
            work()
        except OSError:
            # The command line says so and exits with 1; nothing of it runs in a worker.
            assert name == "import"
        reached = failpoints.disarm()
        whole_or_nothing(store, given)
        heals(store, given)
        emptied(store)
        if not reached:
            break
    assert not reached


@pytest.mark.parametrize("name", ["publish", "import", "fill"])
def test_a_short_write_at_every_call_is_continued(opening, draft, monkeypatch, name):
    given = draft()
    store = opening()
    _, work = works(store, opening("other"), given)[name]
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data[:97])))
    work()
    monkeypatch.undo()
    (manifest,) = store.candidates(given.key).manifests
    assert store.read(manifest, given.blobs) == given.blobs


@pytest.mark.parametrize("trust", ["private", "signed"])
def test_a_signed_store_survives_kills_as_well(opening, draft, failpoints, tmp_path, trust):
    key = tmp_path / "key"
    key.write_text("5a" * 32)
    key.chmod(0o600)
    given = draft()
    store = opening(trust=trust, key_file=key)
    killed = True
    for at in range(1, MOST):
        killed = failpoints.killed_at(at, lambda: store.publish(given))
        whole_or_nothing(store, given)
        heals(store, given)
        emptied(store)
        if not killed:
            break
    assert not killed


def test_every_call_of_the_store_is_numbered(opening, draft, failpoints):
    store = opening()
    failpoints.arm(0, lambda: None)
    store.publish(draft())
    publish = failpoints.count
    failpoints.arm(0, lambda: None)
    (manifest,) = store.candidates(draft().key).manifests
    store.read(manifest, draft().blobs)
    assert publish > 40
    assert failpoints.count > 8
    assert syscalls.rename is not os.rename
