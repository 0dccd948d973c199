"""Several processes on one store: one compiles, all are right, whoever dies (P5)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("scenarios.py")


def wait_until(condition):
    """Look until it is so; the limit of pytest ends what never comes."""
    while not condition():
        time.sleep(0.01)


def start(surroundings, count, **environment):
    """Workers that have everything imported and wait for `go`."""
    before = len(list(surroundings.folder.glob("ready*")))
    workers = [surroundings.start(SCRIPT, "one_of_several", **environment) for _ in range(count)]
    wait_until(lambda: len(list(surroundings.folder.glob("ready*"))) == before + count)
    return workers


def go(surroundings):
    (surroundings.folder / "go").touch()


def rows(workers):
    return [worker.result()["one_of_several"] for worker in workers]


def test_of_six_processes_on_an_empty_store_one_compiles_and_all_are_right(surroundings):
    workers = start(surroundings, 6)
    go(surroundings)
    answers = rows(workers)
    assert [answer["right"] for answer in answers] == [[True]] * 6
    assert sum(answer["misses"] for answer in answers) == 1
    assert sum(answer["hits"] for answer in answers) == 5
    assert sum(answer["bypasses"] for answer in answers) == 0
    assert len(surroundings.listing()) == 1


@pytest.mark.parametrize("send", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_compiling_process_is_killed_another_one_compiles(surroundings, send):
    (holder,) = start(surroundings, 1, NPUGX_TEST_HOLD="1")
    go(surroundings)
    wait_until((surroundings.folder / "holding").exists)
    others = start(surroundings, 2)
    wait_until(lambda: len(list(surroundings.folder.glob("waiting*"))) == 2)
    assert all(worker.process.poll() is None for worker in others)
    os.kill(holder.process.pid, send)
    holder.process.communicate(timeout=60)
    answers = rows(others)
    assert [answer["right"] for answer in answers] == [[True]] * 2
    assert sorted((answer["hits"], answer["misses"]) for answer in answers) == [(0, 1), (1, 0)]


def test_who_waited_long_enough_compiles_by_itself(surroundings):
    (holder,) = start(surroundings, 1, NPUGX_TEST_HOLD="1")
    go(surroundings)
    wait_until((surroundings.folder / "holding").exists)
    (answer,) = rows(start(surroundings, 1, NPUGX_CACHE_LOCK_WAIT="0.3"))
    assert (answer["right"], answer["misses"]) == ([True], 1)
    (surroundings.folder / "release").touch()
    (slow,) = rows([holder])
    assert (slow["right"], slow["misses"]) == ([True], 1)
    assert rows(start(surroundings, 1))[0]["hits"] == 1
