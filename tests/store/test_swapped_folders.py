"""Folders that are swapped for links while a store works in them lead nowhere else."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npugx_cache.config import Settings
from npugx_cache.store import NotStored, PrunePolicy, Published, Store, open_store
from npugx_cache.store.content import verified
from npugx_cache.store.io import syscalls
from npugx_cache.store.io.tree import Tree
from npugx_cache.store.tools import bundle
from npugx_cache.store.tools.audit import verify

KEY = f"{0:064x}"
STRANGER = 65534
IDENTITY = "1d" * 16
CALLS = [
    name
    for name, value in vars(syscalls).items()
    if callable(value)
    and getattr(value, "__module__", "") == syscalls.__name__
    and name not in {"is_regular", "is_folder", "random_name", "close"}
]
SWAPPED = [
    "",
    "v1",
    "v1/ac",
    "v1/ac/00",
    f"v1/ac/00/{KEY}",
    "v1/cas",
    "v1/cas/*",
    "v1/tmp",
    "v1/quarantine",
    "v1/fn",
    f"v1/fn/{IDENTITY}",
    "v1/rec",
    "v1/rec/*",
]


def opened(path):
    store = open_store(Settings(cache_dir=path, max_size=1 << 20))
    assert isinstance(store, Store), store
    return store


def look_up(store, draft, packed):
    for manifest in store.candidates(KEY).manifests:
        store.read(manifest, draft().blobs)
        store.read_record(manifest.entry)
    store.siblings(IDENTITY)
    store.find("0" * 8)
    list(store.listing())


def publish(store, draft, packed):
    store.publish(draft(cost_seconds=5.0))
    for manifest in store.candidates(KEY).manifests:
        store.write_record(manifest.entry, {"a": 2})


def prune(store, draft, packed):
    store.prune(PrunePolicy(everything=True))


def repair(store, draft, packed):
    verify(store.folder, repair=True)


def put_away(store, draft, packed):
    for manifest in store.candidates(KEY).manifests:
        store.record_hit(manifest)
        store.flush()
        store.quarantine(manifest, "does not decode")


def import_bundle(store, draft, packed):
    with contextlib.suppress(OSError):
        bundle.unpack(store.folder, io.BytesIO(packed), sign=False)


WORK = {work.__name__: work for work in (look_up, publish, prune, repair, put_away, import_bundle)}


@pytest.fixture
def packed(tmp_path, draft):
    store = opened(tmp_path / "packed")
    manifest = store.publish(draft(7)).manifest
    out = io.BytesIO()
    bundle.pack(store.folder, [(manifest.key, manifest.entry)], out)
    return out.getvalue()


@pytest.fixture
def filled(root, open_at, publish):
    """A store with an entry, a record, something old in tmp and something in quarantine."""
    store = open_at()
    manifest = publish(store)
    store.write_record(manifest.entry, {"a": 1})
    (root / f"v1/tmp/1-{'0' * 32}").write_bytes(b"unfinished")
    (root / f"v1/quarantine/{'0' * 64}.{'0' * 16}").write_bytes(b"bad")
    os.utime(root / f"v1/tmp/1-{'0' * 32}", (0, 0))
    return root


def snapshot(path):
    found = {}
    for each in [path, *path.rglob("*")]:
        status = each.lstat()
        data = each.read_bytes() if each.is_file() else b""
        found[str(each)] = (
            status.st_mode,
            status.st_ino,
            status.st_nlink,
            status.st_mtime_ns,
            data,
        )
    return found


def a_place_of_the_users_own(filled, path):
    """Folders and files of the same names with other contents, as those of a download cache are."""
    shutil.copytree(filled, path)
    for each in path.rglob("*"):
        if each.is_file():
            each.write_bytes(b"mine, " + each.name.encode())
            os.utime(each, (0, 0))
    return path


class Swap:
    """Puts a link in a folder's place before the chosen system call of the store."""

    def __init__(self, monkeypatch):
        self.count = self.at = 0
        self.swap = lambda: None
        for name in CALLS:
            monkeypatch.setattr(syscalls, name, self.counted(getattr(syscalls, name)))

    def counted(self, call):
        def run(*args, **kwargs):
            self.count += 1
            if self.count == self.at:
                self.swap()
            return call(*args, **kwargs)

        return run


@pytest.mark.parametrize("part", SWAPPED if os.geteuid() == 0 else SWAPPED[1:])
@pytest.mark.parametrize("name", WORK)
def test_a_folder_swapped_for_a_link_at_any_moment_leads_nowhere_else(
    filled, tmp_path, monkeypatch, draft, packed, name, part, only_quick
):
    outside = a_place_of_the_users_own(filled, tmp_path / "outside")
    before = snapshot(outside)
    owner = STRANGER if os.geteuid() == 0 else os.geteuid()
    swap = Swap(monkeypatch)
    root = tmp_path / "swapped"
    # Each part begins at another call, so that a quick run looks at all moments of some part.
    step = 24 if only_quick else 8
    at, reached = 1 + SWAPPED.index(part) * 2 % step, True
    while reached:
        shutil.copytree(filled, root)
        root.chmod(0o700)
        store = opened(root)
        path = next(root.glob(part)) if part else root
        aside = path.with_name(f"{path.name}.aside")

        def put_link(path=path, aside=aside):
            path.rename(aside)
            path.symlink_to(outside / path.relative_to(root))
            os.lchown(path, owner, owner)

        swap.count, swap.at, swap.swap = 0, at, put_link
        WORK[name](store, draft, packed)
        reached, swap.at = swap.count >= at, 0
        assert snapshot(outside) == before, at
        store.settle()
        for each in (path, aside):
            if each.is_symlink():
                each.unlink()
            shutil.rmtree(each, ignore_errors=True)
        shutil.rmtree(root, ignore_errors=True)
        at += step
    assert swap.count > 8, "the work makes so few calls that nothing was swapped in its middle"


def test_a_root_that_is_swapped_for_another_of_ones_own_is_not_read(filled, tmp_path, publish):
    """As by whoever owns the folder above: files of the user's that a stranger has chosen."""
    store = opened(filled)
    (mine,) = store.candidates(KEY).manifests
    evil = opened(tmp_path / "evil")
    theirs = publish(evil, 0, about={"function": "of somebody else"})
    filled.rename(tmp_path / "aside")
    filled.symlink_to(tmp_path / "evil")
    assert store.candidates(KEY).manifests == (mine,)
    assert theirs.entry != mine.entry
    assert isinstance(store.read(mine, ["program"]), dict)


def test_a_store_that_was_moved_goes_on_and_the_next_publish_makes_a_new_one(
    filled, tmp_path, draft
):
    store = opened(filled)
    (manifest,) = store.candidates(KEY).manifests
    filled.rename(tmp_path / "moved")
    assert store.candidates(KEY).manifests == (manifest,)
    assert isinstance(store.publish(draft(1)), Published)
    assert (filled / "v1/ac").is_dir()
    assert [found.key for found in store.candidates(f"{1:064x}").manifests] == [f"{1:064x}"]


@pytest.mark.parametrize("part", ["", "v1", "v1/ac", "v1/cas"])
@pytest.mark.parametrize("remembered", [True, False])
def test_what_was_removed_and_made_anew_by_another_worker_is_found(
    filled, draft, part, remembered, monkeypatch
):
    if remembered:
        monkeypatch.setattr(verified, "_RACY_NS", 0)
    store, given = opened(filled), draft()
    (manifest,) = store.candidates(KEY).manifests
    assert isinstance(store.read(manifest, ["program"]), dict)
    shutil.rmtree(filled / part)
    assert store.candidates(KEY).manifests == () or part == "v1/cas"
    again = opened(filled).publish(given).manifest
    assert store.candidates(KEY).manifests[-1].entry in {again.entry, manifest.entry}
    assert store.read(again, given.blobs) == given.blobs


def test_a_folder_above_that_lost_trust_is_noticed_when_the_store_is_opened_anew(
    tmp_path, draft, publish
):
    above = tmp_path / "above"
    above.mkdir(mode=0o700)
    store = opened(above / "cache")
    publish(store)
    above.chmod(0o777)
    shutil.rmtree(above / "cache")
    answer = store.publish(draft(1))
    assert isinstance(answer, NotStored)
    assert "chmod +t" in answer.reason


def descriptors():
    gc.collect()
    return sorted(Path("/proc/self/fd").iterdir())


def test_descriptors_are_closed_with_their_store(filled, tmp_path, draft):
    before = descriptors()
    for number in range(20):
        store = opened(filled)
        store.publish(draft(number))
        look_up(store, draft, b"")
        with store.lock("ab" * 16, wait=0):
            pass
        store.prune(PrunePolicy(max_entries=5))
        store.flush()
        store.settle()
        shutil.rmtree(filled)
        store.publish(draft(number))
    del store
    assert len(descriptors()) <= len(before)


def test_no_program_that_is_started_inherits_a_folder_of_the_store(filled, draft):
    store = opened(filled)
    look_up(store, draft, b"")
    code = """if True:
        import os
        for name in os.listdir("/proc/self/fd"):
            try: print(os.readlink(f"/proc/self/fd/{name}"))
            except OSError: pass
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, close_fds=False, check=True
    )
    assert str(filled) not in done.stdout


def test_a_forked_child_that_closes_all_descriptors_works_on_and_touches_no_new_ones(
    filled, tmp_path, draft
):
    """As a process does that turns itself into a daemon: the numbers are other folders then."""
    store, given = opened(filled), draft()
    look_up(store, draft, b"")
    other = tmp_path / "other"
    (other / "00").mkdir(parents=True)
    before = snapshot(other)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.closerange(3, 256)
            held = [os.open(other, os.O_RDONLY | os.O_DIRECTORY) for _ in range(30)]
            assert isinstance(store.publish(given), Published)
            assert KEY in {found.key for found in store.candidates(KEY).manifests}
            del store
            gc.collect()
            assert all(os.fstat(fd).st_ino == other.stat().st_ino for fd in held)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert snapshot(other) == before
    assert store.candidates(KEY).manifests


def test_nothing_is_made_where_the_process_stands(filled, tmp_path, monkeypatch, draft, packed):
    """Names inside a store are relative to its folder, never to the working directory."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    before = snapshot(here)
    for work in WORK.values():
        work(opened(filled), draft, packed)
    assert snapshot(here) == before


def test_a_descriptor_that_somebody_closed_and_opened_anew_is_not_ours_to_close(tmp_path):
    tree = Tree(str(tmp_path), "private")
    tree.open()
    fd = tree.hold_part().fd
    other = os.open(__file__, os.O_RDONLY)
    os.dup2(other, fd)
    del tree
    gc.collect()
    os.close(fd)
    os.close(other)
