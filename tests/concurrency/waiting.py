"""Calls beside a compile that does not end by itself: `python waiting.py SCENARIO`; prints JSON.

The compile is held up in the middle of the trace, and goes on when it is let go.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch

from npugx_cache import cache_compile
from tests import mid_trace

HELD = 5  # the size whose compile is held up
entered, let_go = threading.Event(), threading.Event()


@torch.library.custom_op("waiting::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x):
    return torch.empty_like(x)


def hold_up(tensor):
    if tensor.shape[:1] == (HELD,):
        entered.set()
        if len(sys.argv) > 2:  # as the other process: stopped by the parent
            Path(sys.argv[2]).touch()
            signal.pause()
        let_go.wait()


mid_trace.at_each_input(hold_up)


def function(x):
    return double(x) + 1


def other(x):
    return double(x) - 1


cached, beside = cache_compile(function, dynamic=False), cache_compile(other, dynamic=False)


def right(call, size, offset=1):
    return call(torch.ones(size)).tolist() == [2.0 + offset] * size


def started(call, size):
    thread = threading.Thread(target=right, args=(call, size), daemon=True)
    thread.start()
    return thread


def in_child(action):
    """What a forked child says; None if it died."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(into, json.dumps(action()).encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        said = pipe.read()  # ends when the child does
    os.waitpid(child, 0)
    return json.loads(said) if said else None


def hit_beside_a_compile():
    compiling = started(cached, HELD)
    entered.wait()
    answer = right(cached, 3), cached.cache_info()[:4], compiling.is_alive()
    let_go.set()
    compiling.join()
    return answer, cached.cache_info()[:4]


def hit_beside_a_wait_for_another_process(flag):
    holder = subprocess.Popen([sys.executable, __file__, "hold", flag])
    while not Path(flag).exists():
        time.sleep(0.01)
    waiting = started(cached, HELD)
    while not any("_acquire" in text for text in stacks(waiting)):
        time.sleep(0.01)
    answer = right(cached, 3), cached.cache_info()[:4], waiting.is_alive()
    holder.kill()
    holder.wait()
    let_go.set()
    waiting.join()
    return answer, cached.cache_info()[:4]


def stacks(thread):
    frame = sys._current_frames().get(thread.ident)
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back


def fork_beside_a_compile():
    right(cached, 3)
    compiling = started(cached, HELD)
    entered.wait()
    said = in_child(
        lambda: [
            right(cached, 3),
            right(cached, 7),
            right(cached, HELD),
            right(beside, 9, -1),
            list(cached.cache_info()[:4]),
        ]
    )
    let_go.set()
    compiling.join()
    later = in_child(lambda: [right(cached, 11), list(cached.cache_info()[:4])])
    return said, later


def fill():
    return right(cached, 3)


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        right(cached, HELD)
    else:
        extra = [f"{Path.cwd()}/held"] if sys.argv[1].endswith("process") else []
        print(json.dumps(globals()[sys.argv[1]](*extra)))
