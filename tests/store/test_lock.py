from __future__ import annotations

import logging
import signal
import threading
import time

import pytest

from npugx_cache.store import Locked, NotLocked

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
        assert 0.2 <= answer.waited < 2
        assert f"process {holder.pid} on" in answer.reason
    assert f"waiting for process {holder.pid}" in caplog.text


def test_the_kill_of_a_holder_frees_the_lock(store, python):
    holder = python(HOLDER, store.root, NAME)
    assert holder.stdout.readline().strip() == "Locked"
    started = time.monotonic()
    threading.Timer(0.2, holder.send_signal, [signal.SIGKILL]).start()
    # Not waited for: the dead holder stays a zombie, as in a container without an init.
    with store.lock(NAME, wait=20) as answer:
        assert isinstance(answer, Locked)
    assert time.monotonic() - started < 5


def test_a_waiter_stops_as_soon_as_the_result_has_appeared(store, python):
    holder = python(HOLDER, store.root, NAME)
    assert holder.stdout.readline().strip() == "Locked"
    asked = []

    def done() -> bool:
        asked.append(1)
        return len(asked) > 3

    with store.lock(NAME, wait=20, done=done) as answer:
        assert isinstance(answer, NotLocked)
        assert answer.appeared
        assert answer.waited < 5


def test_threads_exclude_each_other(store):
    inside = []
    most = []

    def work() -> None:
        with store.lock(NAME, wait=20) as answer:
            assert isinstance(answer, Locked)
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
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
    import sys, time
    from pathlib import Path
    from npugx_cache.config import Settings
    from npugx_cache.store import Draft, Locked, open_store
    store = open_store(Settings(cache_dir=Path(sys.argv[1])))
    key = sys.argv[2]
    print('ready', flush=True)
    sys.stdin.readline()
    compiled = 0
    appeared = lambda: bool(store.candidates(key).manifests)
    if not appeared():
        with store.lock(key, wait=30, done=appeared) as answer:
            if not appeared():
                assert isinstance(answer, Locked), answer
                compiled = 1
                time.sleep(0.3)
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
    answers = [racer.communicate(timeout=60) for racer in racers]
    assert [err for _, err in answers] == [""] * 6
    assert sorted(out.strip() for out, _ in answers) == ["compiled 0"] * 5 + ["compiled 1"]
