"""Programs for `npugx-cache triage`, most of them with a fault that a user's program can have."""

from __future__ import annotations

import os
import random
import sys
import time
from types import SimpleNamespace

import torch

from npugx_cache import cache_compile

MULTIPLY, COPY = torch.ops.aten.mul.Tensor, torch.ops.aten.copy_.default


def pair():
    return torch.randn(4, 8), torch.randn(4, 8)


def cache_and_value():
    return (SimpleNamespace(kept=torch.randn(4, 8)), torch.randn(4, 8)), {"factor": 3.0}


# --- nothing is wrong


class Counting(torch.nn.Module):
    """Writes to a buffer of its own, and to an argument."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(4, 8))

    def forward(self, cache, x, factor=2.0):
        cache.kept.add_(x)
        self.seen += cache.kept
        return {"sum": self.linear(cache.kept) * factor, "seen": self.seen.sum()}


counting = cache_compile(Counting().eval(), backend="cudagraphs")  # captures on a CPU too


def plain(x, y):
    return (x * y).relu()


# --- passes of the user's


def adds(graph_module, inputs, options):
    for node in graph_module.graph.find_nodes(op="call_function", target=MULTIPLY):
        node.target = torch.ops.aten.add.Tensor


@cache_compile(options={"post_grad_custom_post_pass": adds})
def added(x, y):
    z = x.relu() + y
    return (z * y).sum(-1).cos(), z


def forgets(graph_module, inputs, options):
    for node in graph_module.graph.find_nodes(op="call_function", target=COPY):
        node.replace_all_uses_with(node.args[0])
        graph_module.graph.erase_node(node)


@cache_compile(options={"post_grad_custom_pre_pass": forgets})
def forgotten(x, y):
    total = (x + y).exp()
    x.copy_(y.sin())
    return total


def raises(graph_module, inputs, options):
    if any(True for _ in graph_module.graph.find_nodes(op="call_function", target=MULTIPLY)):
        raise KeyError("a fault of the pass")


@cache_compile(options={"post_grad_custom_pre_pass": raises})
def raised(x, y):
    return (x + 1) * y


def aborts(graph_module, inputs, options):
    os.abort()


@cache_compile(options={"post_grad_custom_pre_pass": aborts})
def aborted_in_pass(x, y):
    return x + y


# --- faults before our code


@cache_compile
def branches(x, y):
    if x.sum() > y.sum():
        return x
    return y


@torch.library.custom_op("triage::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    os.abort()


@cache_compile
def aborted(x, y):
    return twice(x) + y


@cache_compile
def lowered_otherwise(x, y):
    return x * (3 if torch.compiler.is_compiling() else 2) + y


# --- the function itself


@cache_compile
def draws(x, y):
    return x + torch.rand(4, 8) * y


_UNSEEDED = random.SystemRandom()


def unseeded(x, y):
    return x + y * _UNSEEDED.random()


def fails(x, y):
    raise ValueError("the function fails")


def hangs(x, y):
    time.sleep(3600)


START = os.getpid()


def of_this_start(x, y):
    return x * y if START else x


def other_inputs():
    return torch.full((2,), float(os.getpid())), torch.ones(2)


if __name__ == "__main__":  # as a script
    x = torch.ones(4, 8)
    for _ in range(2):
        x = added(x, torch.ones(4, 8))[1] * 0.5
    print(f"{sys.argv[1]}: {x.sum()}")
