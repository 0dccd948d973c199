from __future__ import annotations

import errno
import logging
import os
import signal
import threading

import filelock
import pytest

from npugx_cache.store import Locked, NotLocked
from npugx_cache.store.content import lock

NAME = "ab" * 32

HOLDER = """if True:
    import sys, time
    from pathlib import Path
    from npugx_cache.config import Settings
    from npugx_cache.store import open_store
    store = open_store(Settings(cache_dir=Path(sys.argv[1])))
    with store.lock(sys.argv[2], wait=0) as answer:
        print(type(answer).__name__, flush=True)
        sys.stdin.readline()
"""


def test_a_free_lock_is_taken_at_once_and_given_back(store):
    for _ in range(2):
        with store.lock(NAME, wait=0) as answer:
            assert isinstance(answer, Locked)


def test_different_names_exclude_nobody(store):
    with store.lock(NAME, wait=0) as one, store.lock("cd" * 32, wait=0) as other:
        assert isinstance(one, Locked)
        assert isinstance(other, Locked)


def test_a_waiter_gives_up_at_its_limit_and_says_who_holds_it(store, python, caplog):
    holder = python(HOLDER, store.root, NAME)
    assert holder.stdout.readline().strip() == "Locked"
    with caplog.at_level(logging.INFO, logger="npugx_cache"), store.lock(NAME, wait=0.2) as answer:
        assert isinstance(answer, NotLocked)
        assert answer.held
        assert answer.waited >= 0.2
        assert f"process {holder.pid} on" in answer.reason
    assert f"waiting for process {holder.pid}" in caplog.text


def test_the_lock_of_a_killed_holder_is_taken_at_the_next_look(store, python, monkeypatch):
    holder = python(HOLDER, store.root, NAME)
    assert holder.stdout.readline().strip() == "Locked"
    pauses = []

    def kill() -> bool:
        """Asked by the waiter once it has found the lock held."""
        holder.kill()
        # Not collected: the dead holder stays a zombie, as in a container without an init.
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        monkeypatch.setattr(lock.time, "sleep", pauses.append)
        return False

    with store.lock(NAME, wait=20, done=kill) as answer:
        monkeypatch.undo()
        assert isinstance(answer, Locked)
    assert len(pauses) == 1
    assert pauses[0] <= 0.05


def test_a_lock_file_that_was_removed_after_its_opening_locks_nothing(store, python, monkeypatch):
    removed = []

    def removed_before(descriptor, **options):
        """A cleaner removes the file that the waiter has just opened."""
        monkeypatch.undo()
        (file,) = (store.root / "v1" / "locks").rglob(f"{NAME}*")
        file.unlink()
        removed.append(file)
        return filelock.lock_descriptor(descriptor, **options)

    monkeypatch.setattr(filelock, "lock_descriptor", removed_before)
    with store.lock(NAME, wait=20) as answer:
        assert removed
        assert isinstance(answer, Locked)
        assert python(HOLDER, store.root, NAME).stdout.readline().strip() == "NotLocked"


def test_a_waiter_stops_as_soon_as_the_result_has_appeared(store, python):
    holder = python(HOLDER, store.root, NAME)
    assert holder.stdout.readline().strip() == "Locked"
    asked = []

    def done() -> bool:
        asked.append(1)
        return len(asked) > 3

    with store.lock(NAME, wait=20, done=done) as answer:
        assert isinstance(answer, NotLocked)
        assert answer.reason == "the result appeared"
    assert len(asked) == 4


def test_threads_exclude_each_other(store):
    inside, most = [], []
    together = threading.Barrier(5)

    def work() -> None:
        together.wait()
        with store.lock(NAME, wait=60) as answer:
            assert isinstance(answer, Locked)
            inside.append(1)
            for _ in range(100):
                os.sched_yield()
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 5


def test_a_thread_does_not_wait_for_itself(store):
    with store.lock(NAME, wait=0), store.lock(NAME, wait=60) as again:
        assert isinstance(again, NotLocked)
        assert "this thread" in again.reason


def test_an_error_of_the_body_goes_through_and_frees_the_lock(store):
    with pytest.raises(ZeroDivisionError), store.lock(NAME, wait=0):
        _ = 1 / 0
    with store.lock(NAME, wait=0) as answer:
        assert isinstance(answer, Locked)


@pytest.mark.parametrize("name", ["../../x", "", "XYZ", "a/b"])
def test_a_name_that_is_no_hex_is_not_locked(store, name):
    with store.lock(name, wait=0) as answer:
        assert isinstance(answer, NotLocked)


def test_a_folder_in_place_of_the_lock_file_is_an_answer_and_no_error(store):
    (store.root / f"v1/locks/{NAME}.lock").mkdir()
    with store.lock(NAME, wait=1) as answer:
        assert isinstance(answer, NotLocked)
        assert not answer.held


RACER = """if True:
    import sys
    from pathlib import Path
    from npugx_cache.config import Settings
    from npugx_cache.store import Draft, Locked, open_store
    store = open_store(Settings(cache_dir=Path(sys.argv[1])))
    key = sys.argv[2]
    print('ready', flush=True)
    sys.stdin.readline()
    compiled, said = 0, []

    def appeared():
        return bool(store.candidates(key).manifests)

    def done():
        if not said:  # asked by those who find the lock held
            said.append(1)
            print('waiting', flush=True)
        return appeared()

    with store.lock(key, wait=120, done=done) as answer:
        if not appeared():
            assert isinstance(answer, Locked), answer
            compiled = 1
            print('compiling', flush=True)
            sys.stdin.readline()
            store.publish(Draft(key=key, identity='b' * 64, kind='graph', cost_seconds=1,
                                factors=(), about={}, blobs={'x': b'result'}))
    manifest, = store.candidates(key).manifests
    assert store.read(manifest, ['x'])['x'] == b'result'
    print('compiled', compiled)
"""


def test_of_six_processes_started_together_one_compiles(store, python):
    racers = [python(RACER, store.root, NAME) for _ in range(6)]
    for racer in racers:
        assert racer.stdout.readline().strip() == "ready"
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()
    doing = [racer.stdout.readline().strip() for racer in racers]
    assert sorted(doing) == ["compiling"] + ["waiting"] * 5
    compiling = racers[doing.index("compiling")]
    compiling.stdin.write("\n")
    compiling.stdin.flush()
    answers = [racer.communicate(timeout=120) for racer in racers]
    assert [err for _, err in answers] == [""] * 6
    assert sorted(out.strip() for out, _ in answers) == ["compiled 0"] * 5 + ["compiled 1"]


def bound(store, name=NAME):
    """How long somebody waits for a lock who says nothing about that."""
    from npugx_cache.store.content import lock

    path = store.root / f"v1/locks/{name}.lock"
    return lock._longest_wait(lock._cost(path.read_text() if path.exists() else ""))


def test_the_bound_of_a_wait_comes_from_what_the_work_cost_the_last_time(store, draft):
    assert bound(store) == 600.0
    with store.lock(NAME, wait=0):
        store.publish(draft(cost_seconds=100.0))
    assert bound(store) == 200.0
    # Whoever takes the lock next keeps the figure, and other locks know nothing of it.
    with store.lock(NAME, wait=0):
        assert bound(store) == 200.0
    assert bound(store, "cd" * 32) == 600.0
    store.publish(draft(1, cost_seconds=1.0))
    assert bound(store) == 200.0


@pytest.mark.parametrize("text", ["", "x\nnan", "x\n-3", "x\n1e999", "x\n\n", "\xff\n5\n6"])
def test_an_odd_lock_file_bounds_the_wait_as_an_unknown_one(store, text):
    (store.root / f"v1/locks/{NAME}.lock").write_text(text)
    assert bound(store) == 600.0
    with store.lock(NAME, wait=0) as answer:
        assert isinstance(answer, Locked)


@pytest.mark.parametrize("note", ["1e9", "36000.000", "400.1", "600"])
def test_no_note_in_a_lock_file_lifts_the_bound_above_ten_minutes(store, note):
    (store.root / f"v1/locks/{NAME}.lock").write_text(f"process 1 on host\n{note}")
    assert bound(store) == 600.0


def test_a_stopped_holder_is_waited_for_no_longer_than_the_bound(store, python, monkeypatch):
    holder = python(HOLDER, store.root, NAME)
    assert holder.stdout.readline().strip() == "Locked"
    holder.send_signal(signal.SIGSTOP)
    (store.root / f"v1/locks/{NAME}.lock").write_text(f"process {holder.pid} on host\n1e9")
    monkeypatch.setattr(lock, "_WAIT_AT_MOST", 0.3)
    with store.lock(NAME, wait=None) as answer:
        assert isinstance(answer, NotLocked)
        assert answer.held
    holder.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("link", [os.link, os.symlink], ids=["hard", "symbolic"])
def test_a_link_in_the_place_of_a_lock_file_does_not_reach_the_file_behind_it(
    store, tmp_path, link
):
    notes = tmp_path / "notes.txt"
    notes.write_text("precious\n")
    link(notes, store.root / f"v1/locks/{NAME}.lock")
    with store.lock(NAME, wait=0):
        lock.note_cost(5.0)
    assert notes.read_text() == "precious\n"


@pytest.mark.parametrize("link", [os.link, os.symlink], ids=["hard", "symbolic"])
def test_the_installed_filelock_does_not_truncate_through_a_link(tmp_path, link):
    """The lower bound in pyproject.toml is the first release of which this is true of both."""
    import filelock

    notes = tmp_path / "notes.txt"
    notes.write_text("precious\n")
    link(notes, tmp_path / "x.lock")
    try:
        with filelock.FileLock(tmp_path / "x.lock", timeout=0, fallback_to_soft=False):
            pass
    except (OSError, RuntimeError):  # refused, which is as good
        pass
    assert notes.read_text() == "precious\n"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EIO, errno.EBADF])
def test_without_working_locks_the_body_runs_unlocked(store, monkeypatch, number):
    import fcntl

    def broken(*_args):
        raise OSError(number, "no locks here")

    pauses = []
    monkeypatch.setattr(fcntl, "flock", broken)
    monkeypatch.setattr(lock.time, "sleep", pauses.append)
    with store.lock(NAME, wait=20) as answer:
        assert isinstance(answer, NotLocked)
        assert not answer.held
    assert not pauses


@pytest.mark.parametrize(("every", "said"), [(0.0, 4), (3600.0, 1)])
def test_a_waiter_says_again_whom_it_waits_for(store, python, caplog, monkeypatch, every, said):
    monkeypatch.setattr(lock, "_NOTICE_EVERY", every)
    holder = python(HOLDER, store.root, NAME)
    assert holder.stdout.readline().strip() == "Locked"
    looks = iter([False] * 4 + [True])
    with (
        caplog.at_level(logging.INFO, logger="npugx_cache"),
        store.lock(NAME, wait=60, done=lambda: next(looks)),
    ):
        pass
    lines = [line for line in caplog.messages if f"waiting for process {holder.pid}" in line]
    assert len(lines) == said


def test_a_wait_takes_half_of_the_time_within_which_others_need_the_worker(store, python, caplog):
    """As ranks do that wait in a collective, whose group gives up then."""
    holder = python(HOLDER, store.root, NAME)
    assert holder.stdout.readline().strip() == "Locked"
    with (
        caplog.at_level(logging.INFO, logger="npugx_cache"),
        store.lock(NAME, wait=3600, needed_within=1.0) as answer,
    ):
        assert isinstance(answer, NotLocked)
        assert answer.held
        assert answer.waited >= 0.5
    bound = "half of the timeout of the process group"
    waiting, going_on = caplog.messages
    assert f"waiting for process {holder.pid}" in waiting
    assert waiting.endswith(f"{bound})")
    assert going_on.endswith(f"going on without, {bound}")


FORKED = """if True:
    import os, signal, sys
    from pathlib import Path
    from npugx_cache.config import Settings
    from npugx_cache.store import open_store
    store = open_store(Settings(cache_dir=Path(sys.argv[1])))
    held = store.lock(sys.argv[2], wait=0)
    print(type(held.__enter__()).__name__, flush=True)
    if os.fork() == 0:
        held.__exit__(None, None, None)  # not the child's to release
        with store.lock("cd" * 32, wait=0) as other:
            print(type(other).__name__, flush=True)
            sys.stdin.readline()
        os._exit(0)
    signal.pause()
"""


def test_a_forked_child_neither_releases_its_parents_lock_nor_keeps_it_after_the_parents_death(
    store, python
):
    holder = python(FORKED, store.root, NAME)
    assert holder.stdout.readline() == "Locked\n"
    assert holder.stdout.readline() == "Locked\n"  # the child's own, once it left its parent's
    with store.lock(NAME, wait=0) as answer:
        assert isinstance(answer, NotLocked)
    holder.kill()
    holder.wait()
    with store.lock(NAME, wait=0) as answer:
        assert isinstance(answer, Locked)
    with store.lock("cd" * 32, wait=0) as answer:
        assert isinstance(answer, NotLocked)  # the child lives
    holder.stdin.write("\n")
    holder.stdin.flush()
