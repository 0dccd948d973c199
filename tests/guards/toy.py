"""A module with one of everything that guards look at."""

import dataclasses
import enum

import torch
from torch import nn

SCALE = 0.5
CFG = {"eps": 1e-5, "mode": "a"}


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    pos: torch.Tensor


def act(x, a=2.0):
    return torch.relu(x) * a


def make_shift(amount, *, sign=1):
    def shift(x, extra=(0.5,), *, scale=1.0, terms=[0.25]):  # noqa: B006 - guarded as it is
        return x + sign * amount * scale + extra[0] + terms[0]

    return shift


shift = make_shift(0.125)


def tilt(x, *, by=1.5, steps=2):
    return x * by + steps


class Block(nn.Module):
    limit = 3

    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.o = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.drop = nn.Dropout(0.1)
        self.gain = 1.5

    def forward(self, x, kv, pos):
        kv.index_copy_(0, pos, self.k(x))
        a = torch.softmax(self.q(x) @ kv.T, -1) @ kv
        return x + act(self.drop(self.o(a))) * self.gain * self.limit


class Net(nn.Module):
    def __init__(self, d=16, n=3):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Block(d) for _ in range(n)])
        self.head = nn.Linear(d, 7)
        self.mode = Mode.FAST

    def forward(self, batch: Batch, caches, flag=True, order=None):
        x = batch.x
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache, batch.pos)
        if flag:
            x = x * SCALE
        if CFG["mode"] == "a" and self.mode is Mode.FAST:
            x = x + CFG["eps"]
        x = shift(x) if len(self.head._parameters) == 2 else x
        x = tilt(x)
        for value in (order or {}).values():
            x = x - value
        return self.head(x)


def make():
    model = Net().eval().requires_grad_(False)
    batch = Batch(torch.randn(2, 16), torch.tensor([1, 3]))
    return model, batch, [torch.zeros(8, 16) for _ in range(3)]
