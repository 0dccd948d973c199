"""Every system call of the store fails once, and the process is killed at every one of them."""

from __future__ import annotations

import errno
import os
import shutil
import time

import pytest

from npugx_cache.config import state_folder
from npugx_cache.store import Journal, JournalLine, NotStored, PrunePolicy, Published
from npugx_cache.store.io import syscalls

pytestmark = pytest.mark.thorough

CALLS = [
    name
    for name, value in vars(syscalls).items()
    if callable(value)
    and getattr(value, "__module__", "") == syscalls.__name__
    and name not in {"is_regular", "is_folder", "random_name", "close"}
]


class Failpoint:
    """Counts the store's system calls and does something at the chosen one."""

    def __init__(self, monkeypatch, action):
        self.count = 0
        self.at = 0
        self.action = action
        for name in CALLS:
            monkeypatch.setattr(syscalls, name, self.wrap(getattr(syscalls, name)))

    def wrap(self, call):
        def counted(*args, **kwargs):
            self.count += 1
            if self.count == self.at:
                self.action()
            return call(*args, **kwargs)

        return counted

    def arm(self, at):
        self.count, self.at = 0, at


def fail_with(number):
    def action():
        raise OSError(number, os.strerror(number))

    return action


@pytest.fixture
def given(draft):
    return draft(cost_seconds=5.0, blobs={"a": b"x" * 3000, "b": os.urandom(50)})


def temporaries(store):
    return list((store.root / "v1").glob("tmp/*"))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ESTALE, errno.ENOENT])
def test_an_error_at_any_call_of_publish_is_an_answer_and_the_next_one_heals(
    store, given, monkeypatch, number
):
    point = Failpoint(monkeypatch, fail_with(number))
    for at in range(1, 200):
        point.arm(at)
        answer = store.publish(given)
        reached = point.count >= at
        point.arm(0)
        assert isinstance(answer, (Published, NotStored))
        for manifest in store.candidates(given.key).manifests:
            found = store.read(manifest, given.blobs)
            assert not isinstance(found, dict) or found == given.blobs
        assert isinstance(store.publish(given), Published)
        (manifest,) = store.candidates(given.key).manifests
        assert store.read(manifest, given.blobs) == given.blobs
        shutil.rmtree(store.root / "v1/ac")
        shutil.rmtree(store.root / "v1/cas")
        if not reached:
            break
    assert not reached
    assert at > 20
    assert len(temporaries(store)) <= 1  # where unlink itself was the call that failed


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_an_error_at_any_call_of_the_journal_loses_lines_and_raises_nothing(
    root, state_home, monkeypatch, number
):
    journal = Journal(str(root), state_folder())
    monkeypatch.setattr("npugx_cache.store.upkeep.journal._MAX_BYTES", 1000)  # makes room often
    point, written = Failpoint(monkeypatch, fail_with(number)), 0
    for at in range(1, 200):
        if at % 5 == 0:
            shutil.rmtree(state_home, ignore_errors=True)
        point.arm(at)
        journal.add(JournalLine(time.time(), f"f{at}", "miss", ("x" * 300,), os.getpid()))
        journal.flush()
        journal.load()
        reached = point.count >= at
        point.arm(0)
        written += f"f{at}" in [line.function for line in journal.load()]
        if not reached:
            break
    assert not reached
    assert at > 15
    assert written > 1


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.EMFILE])
def test_an_error_at_any_call_of_a_hit_is_a_miss_with_its_reason(store, given, monkeypatch, number):
    store.publish(given)
    point = Failpoint(monkeypatch, fail_with(number))
    for at in range(1, 60):
        point.arm(at)
        found = store.candidates(given.key)
        answers = [store.read(manifest, given.blobs) for manifest in found.manifests]
        store.siblings(given.identity)
        list(store.listing())
        store.find("0" * 8)
        reached = point.count >= at
        point.arm(0)
        assert found.manifests or errno.errorcode[number] in found.missing_reason
        for answer in answers:
            assert answer == given.blobs or errno.errorcode[number] in answer.reason
        if not reached:
            break
    assert not reached
    (manifest,) = store.candidates(given.key).manifests
    assert store.read(manifest, given.blobs) == given.blobs


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EBUSY, errno.ENOENT])
def test_an_error_at_any_call_of_a_prune_raises_nothing_and_breaks_no_kept_entry(
    store, draft, monkeypatch, number
):
    point = Failpoint(monkeypatch, fail_with(number))
    for at in range(1, 400):
        given = [draft(step, blobs={"a": b"%d" % step * 1000}) for step in range(2)]
        for each in given:
            store.publish(each)
        store.record_hit(store.candidates(given[0].key).manifests[0])
        point.arm(at)
        store.prune(PrunePolicy(max_size=300))
        reached = point.count >= at
        point.arm(0)
        for each in given:
            for manifest in store.candidates(each.key).manifests:
                answer = store.read(manifest, ["a"])
                assert answer == each.blobs or "ENOENT" in answer.reason
        if not reached:
            break
    assert not reached


def in_a_child(work):
    """Run `work` in a forked child and return how it ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_process_killed_at_any_call_of_publish_leaves_a_whole_entry_or_none(
    store, given, monkeypatch
):
    point = Failpoint(monkeypatch, lambda: os._exit(9))
    code = at = 0
    for at in range(1, 200):
        point.arm(at)
        code = in_a_child(lambda: store.publish(given))
        point.arm(0)
        for manifest in store.candidates(given.key).manifests:
            assert store.read(manifest, given.blobs) == given.blobs
        assert len(temporaries(store)) <= 1
        assert isinstance(store.publish(given), Published)
        (manifest,) = store.candidates(given.key).manifests
        assert store.read(manifest, given.blobs) == given.blobs
        for part in ("ac", "cas", "tmp"):
            shutil.rmtree(store.root / "v1" / part)
        if code == 0:
            break
    assert code == 0
    assert at > 20


def test_a_process_killed_at_any_call_of_a_prune_leaves_entries_that_can_be_published_again(
    store, given, monkeypatch
):
    point = Failpoint(monkeypatch, lambda: os._exit(9))
    code = -1
    for at in range(1, 200):
        store.publish(given)
        point.arm(at)
        code = in_a_child(lambda: store.prune(PrunePolicy(everything=True)))
        point.arm(0)
        for manifest in store.candidates(given.key).manifests:
            assert store.read(manifest, given.blobs) == given.blobs
        if code == 0:
            break
    assert code == 0
    store.prune(PrunePolicy(everything=True))
    assert list(store.listing()) == []


def test_short_writes_are_continued(store, given, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data[:7])))
    store.publish(given)
    monkeypatch.undo()
    (manifest,) = store.candidates(given.key).manifests
    assert store.read(manifest, given.blobs) == given.blobs
