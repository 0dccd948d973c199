"""Programs whose graphs somebody else traces. Each gives a function and the arguments of calls."""

from __future__ import annotations

import torch
from torch import nn


def plain():
    def f(x, w):
        return torch.nn.functional.softmax(x @ w, -1) * 2

    return f, [(torch.randn(4, 8), torch.randn(8, 8))]


def breaks():
    """A print in the middle: three calls, two graphs each, with sizes that become dynamic."""

    def f(x, w):
        y = torch.sin(x @ w)
        print("in the middle")
        return y.relu() + x.shape[0], y

    return f, [(torch.randn(n, 8), torch.randn(8, 8)) for n in (4, 5, 6)]


def layers():
    """Equal layers, each a graph of its own."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def forward(self, x):
            torch._dynamo.graph_break()
            return torch.relu(self.lin(x))

    model = nn.Sequential(*(Layer() for _ in range(4)))
    return model, [(torch.randn(3, 8),)]


def writes():
    def f(x, y):
        x.add_(1)
        return x[1:], x.view(-1), y

    return f, [(torch.randn(4, 4), torch.ones(2))]


def buffer():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            self.seen.add_(x.sum(0))
            return x * self.seen

    return Counts(), [(torch.ones(2, 3),), (torch.ones(2, 3),)]


def constants():
    def f(x):
        return x + torch.tensor([1.0, 2.0, 3.0]) * torch.arange(3)

    return f, [(torch.randn(2, 3),)]


def branches():
    def f(x, flag):
        return torch.cond(flag, lambda v: v + 1, lambda v: v * 2, (x,))

    return f, [(torch.randn(3), torch.tensor(True)), (torch.randn(3), torch.tensor(False))]


def autocast():
    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y, x @ w

    return f, [(torch.randn(4, 4), torch.randn(4, 4))]


def shared():
    """Two arguments that share memory."""
    base = torch.randn(6)

    def f(x, y):
        x.mul_(2)
        return x + y

    return f, [(base[:4], base[2:])]


PROGRAMS = {
    each.__name__: each
    for each in (plain, breaks, layers, writes, buffer, constants, branches, autocast, shared)
}
