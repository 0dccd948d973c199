"""What is warmed: functions, a module, and the arguments of their calls."""

import torch

from npugx_cache import cache_compile


def scale(x, by=2):
    return x * by


def shift(x):
    return x + 1


def add(x, pair, *, more=None):
    return x + pair[0] + pair[1] if more is None else x + more["x"]


def prints(x):
    print("no graph has this")
    return x


@cache_compile(strict=True)
def strict(x):
    print("no graph has this")
    return x


def example():
    return torch.ones(2), 3


def examples():
    yield torch.ones(2), 3
    yield (torch.ones(2),), {"by": 4}
    yield torch.ones(2, 5)


torch.manual_seed(0)
net = torch.nn.Linear(4, 4).eval()
