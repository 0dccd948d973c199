"""Programs in which sizes of tensors depend on data: the graph holds for all sizes."""

from __future__ import annotations

import typing

import torch
from torch import nn

PROGRAMS: dict[str, typing.Callable] = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def counted(*values):
    return torch.tensor(values, dtype=torch.float32)


GIVEN = [counted(0, 1, 2), counted(0, 0, 2), counted(0, 0, 0), counted(1, 1, 1)]


def positions(x):
    return x.nonzero() * 2


@program
def nonzero(cached):
    call = cached(positions)
    return [call(x) for x in GIVEN]


def chosen(x):
    return x[x > 0] + 1, x.masked_select(x < 1).sum(), x[(x > 0).nonzero()[:, 0]]


@program
def masks(cached):
    call = cached(chosen)
    return [call(x) for x in GIVEN]


def cut(x):
    n = (x > 0).sum().item()
    return x[:n], x.new_zeros(n, 2), x.narrow(0, 0, n).sum(), torch.arange(n), n + 1


@program
def sizes_made_of_a_number_that_was_read(cached):
    call = cached(cut)
    return [call(x) for x in GIVEN]


def grid(sizes):
    height, width = sizes.tolist()
    return torch.ones(height, width).sum(0), height * width


@program
def sizes_of_a_list(cached):
    call = cached(grid)
    return [call(torch.tensor(sizes)) for sizes in ([2, 3], [1, 1], [0, 4], [5, 0])]


def one(x):
    i = x.argmax().item()
    return x[i], x[i:].clone(), x[i - 1]


@program
def a_view_at_a_place_that_was_read(cached):
    call = cached(one)
    return [call(x) for x in GIVEN]


def different(x, by):
    values, counts = torch.unique(x, return_counts=True)
    return values * counts, x.repeat_interleave(by)


@program
def unique_and_repeated(cached):
    call = cached(different)
    times = [torch.tensor(row) for row in ([1, 2, 3], [0, 0, 0], [0, 1, 0], [4, 0, 4])]
    return [call(x, by) for x, by in zip(GIVEN, times, strict=True)]


def joined(x, y):
    whole = torch.cat([x[x > 0], y[y > 0]])
    return whole.reshape(-1, 1) * 2, whole.sum(), whole.shape[0]


@program
def sizes_added_and_returned(cached):
    call = cached(joined)
    return [call(x, y) for x in GIVEN for y in GIVEN]


class Convolution(nn.Module):
    """As torch-geometric passes messages: along the edges that are no loops."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(tensor(4, 4, seed=3))

    def forward(self, x, edges):
        edges = edges[:, edges[0] != edges[1]]
        messages = x[edges[0]] @ self.weight
        return torch.zeros_like(x).index_add_(0, edges[1], messages)


@program
def messages_along_edges(cached):
    module = cached(Convolution())
    graphs = ([[0, 1, 2], [1, 2, 0]], [[0, 1, 2], [0, 1, 0]], [[0, 1, 2], [0, 1, 2]])
    return [module(tensor(5, 4, seed=n), torch.tensor(e)) for n, e in enumerate(graphs)]


class Experts(nn.Module):
    """A mixture of experts in which each expert computes the tokens that chose it."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(4))
        with torch.no_grad():
            for at, weight in enumerate(self.parameters()):
                weight.copy_(tensor(*weight.shape, seed=at))

    def forward(self, tokens):
        weights, chosen = self.router(tokens).softmax(-1).topk(2)
        result = torch.zeros_like(tokens)
        for at, expert in enumerate(self.experts):
            token, place = torch.where(chosen == at)
            result.index_add_(0, token, expert(tokens[token]) * weights[token, place, None])
        return result


@program
def experts_that_compute_the_tokens_that_chose_them(cached):
    module = cached(Experts().eval())
    return [module(tensor(rows, 8, seed=n)) for n, rows in enumerate((6, 6, 6, 1, 6))]


def halves(x):
    part = x[x[:, 0] > 0]
    return part.reshape(-1, 2).sum(0), part.unsqueeze(0).expand(2, -1, -1).transpose(1, 2)


@program
def shapes_of_what_was_chosen(cached):
    call = cached(halves)
    return [call(tensor(6, 4, seed=n)) for n in range(3)]
