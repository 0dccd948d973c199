"""Calls cached functions on a host with a remote tier, and prints what came of each call as JSON.

Arguments: how many of the functions, and a folder: after two calls the worker makes the file
`paused` there and waits for the file `go`, so that something can happen to the tier. The variable
REMOTE_BUDGET lets lookups wait longer until then, for tests of what a tier answers on a busy
machine.
"""

import contextlib
import json
import logging
import os
import sys
import time
from pathlib import Path

import opendal  # noqa: F401 - loaded before, so that what is measured is the wait for the tier
import torch

import npugx_cache
from npugx_cache.store.remote import tier
from npugx_cache.store.tiers import Layered

budget = tier.BUDGET
tier.BUDGET = float(os.environ.get("REMOTE_BUDGET", budget))


def f0(x):
    return torch.relu(x @ x.T) + 1


def f1(x):
    return torch.softmax(x, 0) * 2


def f2(x):
    return (x.sin() + x.cos()).sum(1)


def f3(x):
    return torch.tanh(x).mean(0) - x


def f4(x):
    return torch.nn.functional.layer_norm(x, (8,)) / 3


waited = [0.0]
"""Seconds that the tier took of the present call: in lookups, in leases and in publishes."""


def timed(name):
    inner = getattr(Layered, name)

    def run(self, *args, **kwargs):
        began = time.perf_counter()
        try:
            return inner(self, *args, **kwargs)
        finally:
            waited[0] += time.perf_counter() - began

    setattr(Layered, name, run)


@contextlib.contextmanager
def timed_lock(self, *args, **kwargs):
    began = time.perf_counter()
    with lock(self, *args, **kwargs) as answer:
        waited[0] += time.perf_counter() - began
        yield answer


timed("fetch")
lock, Layered.lock = Layered.lock, timed_lock

lines = []


class Lines(logging.Handler):
    def emit(self, record):
        lines.append(f"{record.levelname} {record.getMessage()}")


logging.getLogger("npugx_cache").addHandler(Lines())

number, place = int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
torch.manual_seed(0)
x = torch.randn(4, 8)
calls = []
for index, function in enumerate((f0, f1, f2, f3, f4)[:number]):
    if place is not None and index == 2:
        (place / "paused").touch()
        while not (place / "go").exists():
            time.sleep(0.02)
        tier.BUDGET = budget
    waited[0] = 0.0
    cached = npugx_cache.cache_compile(function)
    with torch.no_grad():
        equal = torch.equal(cached(x), function(x))
    info = cached.cache_info()
    told = [reason for refusal in cached.explain() for reason in refusal.reasons]
    calls.append(
        {
            "equal": equal,
            "hits": info.hits,
            "misses": info.misses,
            "bypasses": info.bypasses,
            "stored": info.stored,
            "waited_ms": waited[0] * 1e3,
            "told": told,
        }
    )
print(json.dumps({"calls": calls, "lines": lines}))
