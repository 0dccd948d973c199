"""Functions for the graph engine (GE), each with its arguments: what can be asked of results."""

import torch


def permuted(x):
    return x.t() * 2


def views_and_sizes(x):
    made = x + 1
    return made, made[:2], x[1:], made.shape[0]


def in_place(x, y):
    x.add_(y)
    return x * 2


def written_slice(x, y):
    x[:2].copy_(y[:2])
    return x.sum(-1)


def written_argument_returned(x, y):
    x.mul_(2)
    return x, x.clone(), y.clone()


def written_through_a_view(x):
    x.t().add_(1)
    return x * 3


def one_result_twice(x):
    made = x + 1
    return made, made.clone(), made


def attention(x, y):
    return (x @ y.t()).softmax(-1)


def number(x, n):
    return x * n + n


def size(x):
    return x.reshape(x.shape[0] * 2, -1).sum(0) * x.shape[0]


def constant(x):
    return x + torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8], device=x.device)


def _tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, Y = _tensor(4, 8), _tensor(4, 8, seed=1)
STATIC = {
    permuted: [(X,)],
    views_and_sizes: [(X,)],
    in_place: [(X, Y)],
    written_slice: [(X, Y)],
    written_argument_returned: [(X, Y)],
    written_through_a_view: [(X,), (_tensor(8, 4).t(),)],
    one_result_twice: [(X,)],
    constant: [(X,)],
}
DYNAMIC = {
    attention: [(X, Y), (_tensor(6, 8), _tensor(5, 8))],
    number: [(X, 3), (X, 7)],
    size: [(X,), (_tensor(6, 8),)],
}
"""Each with arguments of several calls."""
