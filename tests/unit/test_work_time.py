from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

BUSY = "import time\nwhile time.process_time() < 0.3: pass"
"""Works for many of the ticks of 10 ms in which the kernel counts."""

SCRIPT = """if True:
    import os, sys, signal, time
    import torch
    from npugx_cache import cache_compile
    from tests.mid_trace import at_each_input

    def stop(x):
        if not stopped:
            stopped.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGSTOP)

    stopped = []
    at_each_input(stop)
    cached = cache_compile(lambda x: x + 1)
    started = time.monotonic()
    cached(torch.ones(3))
    assert cached.cache_info().stored == 1, cached.cache_info()
    print(time.monotonic() - started)
"""


@pytest.mark.thorough
def test_a_compile_that_was_stopped_does_not_cost_the_time_that_it_was_stopped(surroundings):
    """In the manifest, and in the lock file that tells others how long to wait."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=surroundings.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    since = time.monotonic()
    time.sleep(2)  # how long it is stopped; nothing waits for anything
    stopped = time.monotonic() - since
    os.kill(process.pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=120)
    passed = float(out)
    (row,) = surroundings.listing()
    assert 0 < row["cost_seconds"] <= passed - stopped
    (lock,) = (surroundings.store / "v1/locks").glob("*.lock")
    assert float(lock.read_text().splitlines()[1]) <= passed - stopped


def test_the_work_of_a_child_counts():
    from npugx_cache.interpreter.work_time import WorkTime

    worked = WorkTime()
    before, started = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    after, passed = os.times(), time.perf_counter() - started
    child = after.children_user + after.children_system
    child -= before.children_user + before.children_system
    # The kernel counts a child in ticks of 10 ms, so it may seem to have worked longer than it ran.
    assert worked.seconds() >= min(child, passed) * 0.999 > 0.2


def test_more_work_than_time_passed_counts_as_the_time_that_passed():
    """Two children at once, as of a compiler with many threads, or another thread of ours."""
    from npugx_cache.interpreter.work_time import WorkTime

    started, worked = time.perf_counter(), WorkTime()
    children = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(4)]
    assert [child.wait() for child in children] == [0] * 4
    assert worked.seconds() <= time.perf_counter() - started
