"""What a compile tells while it goes on: why, each phase, and every ten seconds where it is."""

import contextlib
import itertools
import logging
import os
import queue
import threading
import warnings

import pytest
import torch

from npugx_cache import cache_compile, config, store
from npugx_cache.events import progress

PHASES = [
    "loading torch's compiler",
    "waiting for other threads that compile",
    "tracing and lowering",
    "passes",
    "guards and source facts",
    "packing",
    "binding",
    "comparing the first result",
    "publishing",
]
PATIENCE = 60  # seconds after which a thread that should have answered is taken for hanging


X = torch.ones(3)


def act(x, y=X, z=X):
    return x * y + z


@pytest.fixture
def said(caplog, tmp_path, monkeypatch):
    """The lines of calls in a new store, where this many seconds are long."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def call_with(given, seconds=3600.0):
        monkeypatch.setattr(progress, "SLOW_SECONDS", seconds)
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="npugx_cache"):
            cached = cache_compile(act, cache_dir=tmp_path)
            assert torch.equal(cached(*given), act(*given))
        return [record.getMessage() for record in caplog.records]

    return call_with


def phases(lines):
    return [line.split(": compiling: ")[1].rpartition(" took ")[0] for line in lines]


def test_a_long_compile_tells_of_each_phase(said):
    lines = said((X,), seconds=0.0)
    assert phases(line for line in lines if ": compiling: " in line) == PHASES
    assert all("act: " in line for line in lines)


def test_the_journal_keeps_the_phases_of_a_compile(said, tmp_path):
    said((X,))
    journal = store.journal_of(str(tmp_path), config.state_folder())
    journal.flush()
    (line,) = journal.load()
    assert [name for name, _ in line.phases] == PHASES
    assert all(seconds >= 0 for _, seconds in line.phases)


def test_a_quick_one_says_why_it_starts(said):
    given = (X.clone(), X.clone(), X.clone())
    first, last = said(given)
    assert first.endswith("act: compiling (no entry for this function)")
    assert "act: miss in " in last
    first, last = said((X.double(), X[:1].clone(), X.half()))
    assert "act: compiling (x: dtype was float32, is float64; y: size was " in first
    assert "; and 1 more); the last compile took " in first
    assert "z: dtype was " in last
    [line] = said(given)
    assert "act: hit in " in line


def test_an_emptied_store_still_knows_how_long_the_last_compile_took(said, tmp_path):
    from npugx_cache import config, store

    said((X,))
    store.journal_of(str(tmp_path), config.state_folder()).flush()
    (tmp_path / "v1").rename(tmp_path / "away")
    first, *_ = said((X,))
    assert "(no entry for this function); the last compile took " in first


def test_what_was_over_before_is_told_as_soon_as_it_is_long(caplog, monkeypatch):
    monkeypatch.setattr(progress, "SLOW_SECONDS", 3600.0)
    with caplog.at_level(logging.INFO, logger="npugx_cache"):
        told = progress.Progress("f")
        told.begin("one")
        told.begin("two")
        assert not caplog.records
        monkeypatch.setattr(progress, "SLOW_SECONDS", 0.0)
        told.begin("three")
        told.end()
    assert phases(r.getMessage() for r in caplog.records) == ["one", "two", "three"]


def test_a_phase_of_no_length_is_left_out(caplog, monkeypatch):
    monkeypatch.setattr(progress, "SLOW_SECONDS", 2.0)
    times = iter([0.0, 0.0, 9.0, 9.1])
    with caplog.at_level(logging.INFO, logger="npugx_cache"):
        told = progress.Progress("f", clock=lambda: next(times))
        told.begin("long")
        told.begin("short")
        told.end()
    assert phases(r.getMessage() for r in caplog.records) == ["long"]


class Listener(logging.Handler):
    """Keeps each line until the test takes it: a thread that logs waits for the test."""

    def __init__(self):
        super().__init__()
        self.lines = queue.Queue()
        self.goes_on = threading.Semaphore(0)

    def handle(self, record):
        self.lines.put(record)
        if threading.current_thread() is not threading.main_thread():
            assert self.goes_on.acquire(timeout=PATIENCE)

    def next(self):
        record = self.lines.get(timeout=PATIENCE)
        return record.getMessage()


@pytest.fixture
def listener():
    logger, listener = logging.getLogger("npugx_cache"), Listener()
    before = logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    yield listener
    for _ in range(1000):
        listener.goes_on.release()
    logger.removeHandler(listener)
    logger.setLevel(before)


def clock():
    """A clock that goes on by ten seconds each time it is asked."""
    times = itertools.count(step=10)
    return lambda: float(next(times))


def threads():
    return [each for each in threading.enumerate() if each.name == "npugx_cache progress"]


def beating(listener, **arguments):
    return progress.Progress("f", every=0.0, **arguments)


def test_a_beat_names_the_phase_of_the_moment(listener, monkeypatch):
    monkeypatch.setattr(progress, "SLOW_SECONDS", float("inf"))
    with beating(listener, clock=clock()) as told:
        assert listener.next() == "f: still compiling after 10 s: starting"
        told.begin("one")  # asks the clock, and the line of the phase has to wait
        listener.goes_on.release()
        assert listener.next() == "f: still compiling after 30 s: one"
        told.begin("two")
        listener.goes_on.release()
        assert listener.next() == "f: still compiling after 50 s: two"
        [thread] = threads()
        assert thread.daemon
        listener.goes_on.release(1000)
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_an_exception_ends_the_thread_and_is_told(listener):
    def failing():
        with beating(listener, clock=clock()):
            assert "still compiling" in listener.next()
            listener.goes_on.release(1000)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    for thread in threads():
        thread.join(PATIENCE)
    assert not threads()
    *_, last = (record.getMessage() for record in listener.lines.queue)
    assert last.startswith("f: compiling ended after ")
    assert last.endswith(" s: KeyboardInterrupt")


def test_a_handler_that_waits_for_the_compiling_thread_does_not_stop_it(listener, monkeypatch):
    monkeypatch.setattr(progress, "_LONGEST_WAIT", 0.0)
    with beating(listener):
        listener.next()
    [thread] = threads()  # waits for the test, and the test has left the compile
    listener.goes_on.release()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_thread_whose_compile_is_forgotten_ends(listener):
    told = beating(listener).__enter__()
    listener.next()
    [thread] = threads()
    del told
    listener.goes_on.release(1000)
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_no_thread_is_started_where_nobody_listens():
    logger = logging.getLogger("npugx_cache")
    assert not logger.isEnabledFor(logging.INFO)
    with progress.Progress("f", every=0.0):
        assert not threads()


def test_a_fork_in_the_middle_leaves_the_child_without_the_thread(listener):
    with contextlib.ExitStack() as compiling:
        told = compiling.enter_context(beating(listener))
        listener.next()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of a fork with threads
            child = os.fork()
        if not child:
            try:
                told.begin("one")
                compiling.close()
                os._exit(7 if not threads() else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        listener.goes_on.release()
        assert "still compiling" in listener.next()  # in the parent it goes on
        listener.goes_on.release(1000)
