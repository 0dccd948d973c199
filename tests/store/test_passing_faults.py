"""A fault that passes keeps no worker from its store afterwards, and lasting ones cost no time."""

from __future__ import annotations

import errno
import os
import time

import pytest

from npugx_cache import config, passing
from npugx_cache.config import Settings
from npugx_cache.store import Access, Miss, NotStored, Published, Store, Unusable
from npugx_cache.store.io import syscalls

KEY = f"{0:064x}"
BURSTS = (errno.EMFILE, errno.ENOMEM, errno.ESTALE, errno.EIO, errno.ENOTCONN)
CALLS = [
    name
    for name, value in vars(syscalls).items()
    if callable(value)
    and getattr(value, "__module__", "") == syscalls.__name__
    and name not in {"is_regular", "is_folder", "random_name", "close"}
]


class Clock:
    """Monotonic time that stands still until a test moves it."""

    def __init__(self, monkeypatch):
        self.now = 1e6
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Burst:
    """From the call `at` on, the system calls of the store fail, until the burst is over."""

    def __init__(self, monkeypatch):
        self.count, self.at, self.number, self.takes = 0, 0, 0, lambda: None
        for name in CALLS:
            monkeypatch.setattr(syscalls, name, self.wrapped(getattr(syscalls, name)))

    def wrapped(self, call):
        def run(*args, **kwargs):
            self.count += 1
            if self.at and self.count >= self.at:
                self.takes()
                if call.__name__ == "may_write":
                    return False  # as `access` answers for any error
                raise OSError(self.number, os.strerror(self.number))
            return call(*args, **kwargs)

        return run

    def begin(self, at, number):
        self.count, self.at, self.number = 0, at, number

    def end(self):
        self.count, self.at = 0, 0


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def burst(monkeypatch):
    return Burst(monkeypatch)


@pytest.fixture
def filled(root, open_at, publish):
    publish(open_at())
    return root


def is_whole(access, draft, number):
    """Whether the store is there, with its entry, and takes new ones."""
    store = access.store()
    assert isinstance(store, Store), store
    assert (store.lacks, store.readonly) == ((), None)
    assert isinstance(store.publish(draft(number)), Published)
    return bool(store.candidates(f"{number:064x}").manifests)


@pytest.mark.parametrize(
    "number",
    [BURSTS[0], *(pytest.param(each, marks=pytest.mark.thorough) for each in BURSTS[1:])],
    ids=errno.errorcode.get,
)
@pytest.mark.parametrize("fresh", [False, True])
def test_after_a_burst_at_any_call_of_an_opening_the_store_is_whole(
    filled, tmp_path, clock, burst, draft, number, fresh
):
    def settings(at):
        return Settings(cache_dir=tmp_path / f"new{at}" if fresh else filled)

    burst.end()
    assert is_whole(Access(settings(0)), draft, 1)
    calls, at = 1, 0
    while at < calls:
        at += 1
        access = Access(settings(at))
        burst.begin(at, number)
        for _ in range(3):
            access.store()
        calls = max(calls, min(burst.count, 60))
        burst.end()
        assert is_whole(access, draft, at + 1)


@pytest.mark.parametrize("number", BURSTS, ids=errno.errorcode.get)
def test_what_is_said_during_a_burst_and_after_it(filled, clock, burst, draft, number):
    access = Access(Settings(cache_dir=filled))
    burst.begin(1, number)
    found = access.store()
    assert isinstance(found, Unusable)
    assert errno.errorcode[number] in found.reason
    burst.end()
    assert is_whole(access, draft, 1)
    burst.begin(1, number)  # an open store: its folders are kept, and each call is tried
    store = access.store()
    assert errno.errorcode[number] in store.candidates(KEY).refused[0].reason
    assert isinstance(store.publish(draft(2)), NotStored)
    burst.end()
    assert store.candidates(KEY).manifests
    assert is_whole(access, draft, 2)


def test_a_store_that_makes_callers_wait_is_asked_rarely(filled, clock, burst, draft):
    """A lost mount may block each call for minutes: at most a twentieth of the time goes there."""
    access = Access(Settings(cache_dir=filled))

    def wait():
        clock.now += 30.0

    burst.takes = wait
    burst.begin(1, errno.EIO)
    assert isinstance(access.store(), Unusable)
    asked, began = burst.count, clock.now
    while clock.now < began + 599.0:
        assert isinstance(access.store(), Unusable)
        clock.now += 50.0
    assert burst.count == asked
    burst.end()
    clock.now = began + 600.0
    assert is_whole(access, draft, 1)


def test_what_somebody_mends_is_found_after_a_pause(filled, clock, burst, draft):
    access = Access(Settings(cache_dir=filled))
    filled.chmod(0o777)
    assert "chmod o-w" in access.store().reason
    filled.chmod(0o700)
    burst.begin(10_000, 0)  # only counts
    clock.now += passing.WHEN_MENDED - 0.1
    assert isinstance(access.store(), Unusable)
    assert burst.count == 0
    clock.now += 0.1
    assert is_whole(access, draft, 1)


def test_a_folder_that_is_mounted_later_is_found(tmp_path, open_at, publish, clock):
    access = Access(Settings(cache_dir=tmp_path / "later", mode="readonly"))
    assert "does not exist" in access.store().reason
    publish(open_at(tmp_path / "later"))
    clock.now += passing.WHEN_MENDED
    assert access.store().candidates(KEY).manifests


def test_a_folder_that_can_be_written_later_is_written(filled, clock, monkeypatch, draft):
    access = Access(Settings(cache_dir=filled))
    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "may_write", lambda *_: False)
        store = access.store()
        assert isinstance(store.publish(draft(1)), NotStored)
        assert store.candidates(KEY).manifests
        clock.now += passing.WHEN_MENDED
        assert access.store() is store  # nothing has changed, and it knows verified files
    clock.now += passing.WHEN_MENDED
    assert is_whole(access, draft, 1)


def test_a_folder_that_the_user_wants_to_read_only_lacks_nothing(filled):
    store = Access(Settings(cache_dir=filled, mode="readonly")).store()
    assert store.readonly
    assert store.lacks == ()


@pytest.mark.parametrize("name", ["local_dir", "baked_dirs", "cache_dir"])
def test_a_tier_that_was_left_out_is_there_after_the_burst(
    tmp_path, open_at, publish, clock, monkeypatch, name
):
    folders = {each: tmp_path / each for each in ("local_dir", "baked_dirs", "cache_dir")}
    for number, folder in enumerate(folders.values()):
        publish(open_at(folder), number)
    before = syscalls.step

    def step(part, at=None):
        if part == name:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return before(part, at)

    access = Access(Settings(**{**folders, "baked_dirs": (folders["baked_dirs"],)}))
    left_out = list(folders).index(name)
    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "step", step)
        store = access.store()
        found = [bool(store.candidates(f"{n:064x}").manifests) for n in range(3)]
        assert found == [n != left_out for n in range(3)]
    store = access.store()
    assert all(store.candidates(f"{n:064x}").manifests for n in range(3))
    assert store.lacks == ()
    assert store.root == folders["cache_dir"]


def test_a_store_is_kept_while_it_can_not_be_opened_anew(filled, clock, burst, monkeypatch):
    access = Access(Settings(cache_dir=filled))
    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "may_write", lambda *_: False)
        store = access.store()
    clock.now += passing.WHEN_MENDED
    burst.begin(1, errno.EMFILE)
    assert access.store() is store


def test_a_lost_mount_that_is_there_again_is_used_at_once(
    filled, tmp_path, monkeypatch, open_at, publish, draft
):
    """Descriptors of a file system that is gone fail for ever, also when it is mounted again."""
    store = open_at()
    (manifest,) = store.candidates(KEY).manifests
    lost = filled.stat().st_dev, filled.stat().st_ino
    folders = {(each.stat().st_dev, each.stat().st_ino) for each in filled.rglob("*")} | {lost}
    filled.rename(tmp_path / "before")
    publish(open_at(tmp_path / "other"))
    (tmp_path / "other").rename(filled)

    def failing(call, position):
        def run(*args):
            fd = args[position] if len(args) > position else None
            if fd is not None:
                status = os.fstat(fd)
                if (status.st_dev, status.st_ino) in folders:
                    raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
            return call(*args)

        return run

    for name in ("open_read", "open_folder", "step", "lstat"):
        monkeypatch.setattr(syscalls, name, failing(getattr(syscalls, name), 1))
    monkeypatch.setattr(syscalls, "fstat", failing(syscalls.fstat, 0))
    assert store.candidates(KEY).manifests
    assert isinstance(store.publish(draft(1)), Published)
    assert not isinstance(store.read(manifest, ["program"]), Miss)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "off"}, "switched off"),
        ({"trust": "signed"}, "NPUGX_CACHE_KEY_FILE"),
        ({"cache_dir": config.NO_FOLDER}, "NPUGX_CACHE_DIR"),
    ],
)
def test_what_follows_from_settings_is_not_asked_again(root, clock, burst, settings, said):
    access = Access(Settings(**{"cache_dir": root, **settings}))
    found = access.store()
    assert said in found.reason
    burst.begin(10_000, 0)
    clock.now += 1e9
    assert access.store() is found
    assert burst.count == 0


def test_a_key_that_can_not_be_read_now_is_read_later(filled, tmp_path, clock, burst):
    key = tmp_path / "key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    access = Access(Settings(cache_dir=filled, trust="signed", key_file=key))
    burst.begin(1, errno.EMFILE)
    assert "EMFILE" in access.store().reason
    burst.end()
    assert isinstance(access.store(), Store)


def test_each_error_of_a_burst_passes_and_an_unknown_one_may():
    assert {passing.pause_after(number) for number in BURSTS} == {passing.SOON}
    assert passing.pause_after(99_999) == passing.pause_after(None) == passing.WHEN_MENDED
    assert not passing.is_passing(PermissionError(errno.EACCES, "denied"))
    assert not passing.is_passing(ImportError("No module named 'nothing'"))


def test_a_library_that_can_not_be_opened_now_is_a_passing_fault():
    text = f"libm.so: cannot open shared object file: {os.strerror(errno.EMFILE)}"
    assert passing.is_passing(ImportError(text))
