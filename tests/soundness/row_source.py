"""Source that the rows of the matrix have in common."""

from __future__ import annotations

HEAD = """\
import collections, contextlib, dataclasses, enum, functools, math, operator, os, typing
import torch
from torch import nn
from torch.nn import functional


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


"""
MAKE = """

def make(cached):
    return cached(f{arguments}), GIVEN


def run(call, given):
    return call(*given[0]())


GIVEN = [lambda: ({args},)]
"""
THEN = """

def change(call, given):
    given[:] = [lambda: ({then},)]
"""
RUN = """

def run(call, *args):
    return call(tensor(3))
"""
TEXTS = {
    "MODEL": """\
class Base(nn.Module):
    factor = 2

    def __init__(self):
        super().__init__()
        self.scale = 2
        self.config = {"a": 1, "b": 2}
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.5)

    @property
    def size(self):
        return self.scale + 1

    @staticmethod
    def fixed(x):
        return x - 1

    @classmethod
    def of_class(cls, x):
        return x * cls.factor

    def helper(self, x):
        return x * 1.5


class Model(Base):
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        x = self.helper(self.fixed(self.of_class(x))) * self.size
        if self.training:
            x = x * 2
        for name, value in self.config.items():
            x = x * 0.5 + value + len(name)
        return x


def make(cached):
    model = Model().eval()
    return cached(model.forward), model, tensor(2, 3)


def run(call, model, x):
    return call(x)


""",
    "OBJECT": """\
class Box:
    def __init__(self, n=2):
        self.n = n

    def __len__(self):
        return 2

    def __bool__(self):
        return True

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1

    def __contains__(self, item):
        return True

    def __getitem__(self, i):
        return i + 2

    def __getattr__(self, name):
        return len(name)

    def __call__(self, x):
        return x * self.n

    def __enter__(self):
        return 4

    def __exit__(self, *error):
        return None

    def __iter__(self):
        return iter([1, 2])

    def __add__(self, other):
        return 9


BOX = Box()

""",
    "NAMES": """\
NAMES = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota"]


def walk(x, names):
    for name in names:
        x = x * 1.5 + len(name) + ord(name[0]) / 16
    return x


""",
}
"""By the name that a row asks for."""
