"""Calls of which some are made when no file can be opened: `no_descriptors.py SCENARIO`.

No module that is not loaded yet can be imported then. Prints whether all results were right, the
counts, what the last call of the shortage explains, and what a call with other sizes came to after
the shortage.
"""

import contextlib
import json
import os
import resource
import sys
import time
import types

import torch

from npugx_cache import cache_compile

SOFT, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)


@contextlib.contextmanager
def shortage():
    """No descriptor can be had: the limit is the lowest number that is free."""
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, HARD))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))


def add(x):
    return x + 1


def fails(x):
    try:
        return torch.take(x, (x * 2).long())
    except IndexError:
        return -x


def breaks(x):
    y = x * 2
    print(end="")
    return y + 1


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).relu()


def wanted(x):
    return -x if bool((x > 0).any()) else torch.take(x, (x * 2).long())


def first(cached):
    yield cached(X), X + 1


def later(cached):
    yield cached(X), X + 1
    with shortage():
        for _ in range(5):
            yield cached(X), X + 1
            yield cached(X[:2]), X[:2] + 1


def raising(cached):
    zeros, bad = torch.zeros(3), torch.arange(3.0)
    yield cached(zeros), zeros
    with shortage():
        yield cached(bad), -bad
        yield cached(bad), -bad
    yield cached(bad), -bad
    yield cached(bad), -bad


def pieces(cached):
    with shortage():
        yield cached(X), X * 2 + 1
    yield cached(X), X * 2 + 1


def all_short(cached):
    with shortage():
        for _ in range(3):
            yield cached(X), X + 1
    yield cached(X), X + 1


def warmed(cached):
    with shortage():
        cached.warm(X)
        cached.warm()
        yield cached(X), X + 1
    cached.warm(X)
    yield cached(X), X + 1


def with_spans(cached):
    # As a program that has loaded the API of OpenTelemetry, whose other modules can't be loaded.
    sys.modules["opentelemetry.trace"] = types.ModuleType("opentelemetry.trace")
    yield from all_short(cached)


def module(cached):
    net = Net().eval()
    cache_compile(net)
    x = torch.ones(2, 4)
    want = torch.relu(torch.nn.functional.linear(x, net.linear.weight, net.linear.bias))
    with shortage():
        yield net(x), want
    yield net(x), want
    yield net(x[:1]), want[:1]


def torchs(cached):
    compiled = torch.compile(add, backend="npugx", dynamic=False)
    yield compiled(X), X + 1  # loads Dynamo itself, whose modules are not ours
    with shortage():
        yield compiled(X[:2]), X[:2] + 1
    yield compiled(X[:1]), X[:1] + 1


SCENARIOS = {
    "first": (add, all_short, {}),
    "later": (add, later, {}),
    "raising": (fails, raising, {}),
    "pieces": (breaks, pieces, {"fullgraph": None}),
    "bypass": (breaks, pieces, {}),
    "warm": (add, warmed, {}),
    "plan": (add, all_short, {"warm": "plan"}),
    "spans": (add, with_spans, {}),
    "module": (add, module, {}),
    "torch": (add, torchs, {}),
}
X = torch.ones(3)
if __name__ == "__main__":
    # Here alone: pytest imports this file, too. No opening takes long, however busy the machine is.
    time.monotonic = lambda: 0.0
    function, scenario, arguments = SCENARIOS[sys.argv[1]]
    cached = cache_compile(function, dynamic=False, **arguments)
    right = [torch.equal(found, want) for found, want in scenario(cached)]
    counts = list(cached.cache_info()[:4])
    print(json.dumps({"right": right, "counts": counts, "explained": str(cached.explain())}))
