"""Programs about objects that live across calls, as the KV caches of transformers do."""

from __future__ import annotations

import collections
import typing

import torch

PROGRAMS: dict[str, typing.Callable] = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Window:
    """Keeps the last positions as a view of what was joined, and counts all of them."""

    def __init__(self, positions):
        self.positions, self.kept, self.total = positions, torch.zeros(2, 2, 0, 4), 0

    def update(self, x):
        whole = torch.cat([self.kept, x], dim=-2)
        self.kept = whole[:, :, -self.positions :, :]
        offset = max(self.total - self.positions, 0)
        self.total += x.shape[-2]
        return whole, offset


def attends_window(window, x):
    whole, offset = window.update(x)
    return torch.softmax(x @ whole.transpose(-1, -2), -1) @ whole + offset


@program
def a_window_that_fills_and_then_slides(cached):
    call, window = cached(attends_window), Window(7)
    outs = [call(window, tensor(2, 2, n, 4, seed=i)) for i, n in enumerate((5, 1, 1, 1, 1, 1))]
    return [outs, window.kept, window.total]


class Recorder:
    """Writes past its own descriptors, more than once in a call."""

    def __init__(self):
        self.value, self.active, self.count = None, False, 0

    def record(self, value):
        attributes = vars(self)
        attributes["value"] = value
        attributes["active"] = True
        attributes["count"] += 1


class Table(collections.OrderedDict):
    """As the outputs of transformers' models are: read by the position of a key."""


RECORDERS = [Recorder()]


def records(table, own):
    RECORDERS[0].record("seen")
    own.record(table["x"] * 2)
    return table["x"] + 1, table["y"]


@program
def attributes_set_past_descriptors(cached):
    RECORDERS[0] = Recorder()
    own, table = Recorder(), Table(x=tensor(3), y=tensor(2))
    out = cached(records)(table, own)
    return [out, vars(own), vars(RECORDERS[0]), out[1] is table["y"]]


def sums_the_rest(x, rest):
    for number, each in rest:
        x = x + each * number
    return x


@program
def an_iterator_of_a_tuple_that_was_started(cached):
    call, rest = cached(sums_the_rest), iter(((1, tensor(3)), (2, tensor(3, seed=1)), (3, 0.5)))
    next(rest)
    outs = [call(tensor(3), rest), list(rest)]
    return [*outs, call(tensor(3), iter(((2, tensor(3)),)))]


class Makers(collections.OrderedDict):
    """Makes what it is asked for, as the table of activations of transformers does."""

    def __getitem__(self, key):
        kind, arguments = super().__getitem__(key)
        return kind(**arguments)


class Scale:
    def __init__(self, by=1.0):
        self.by = by

    def __call__(self, x):
        return x * self.by


MAKERS = Makers(one=(Scale, {}), half=(Scale, {"by": 0.5}))


def makes_its_own(x, name):
    return MAKERS[name](x)


@program
def a_table_that_makes_what_it_is_asked_for(cached):
    call = cached(makes_its_own)
    return [call(tensor(3), name) for name in ("half", "one")]
