"""Programs that read numbers from data: nothing in a graph depends on them but what uses them."""

from __future__ import annotations

import typing

import torch

PROGRAMS: dict[str, typing.Callable] = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scales_by_what_it_reads(x, i, b):
    n, flag = i.sum().item(), b.all().item()
    return x * n + i.max().item(), n, flag, x.add(1, alpha=n * 2 + 1), torch.full((2,), n)


@program
def numbers_read_from_data(cached):
    call = cached(scales_by_what_it_reads)
    flags = [torch.tensor([True, value]) for value in (True, False)]
    counts = [torch.tensor(values) for values in ([3, 4], [0, 0], [1, -1], [-5, 2])]
    return [call(tensor(3), i, b) for i in counts for b in flags]


def keeps_what_it_reads(x, memo):
    memo["last"] = x[0].item()
    memo["counts"] = (x > 0).sum().tolist()
    return x - memo["last"]


@program
def numbers_kept_in_python(cached):
    call, memo = cached(keeps_what_it_reads), {}
    return [[call(tensor(3, seed=i), memo), dict(memo)] for i in range(3)]


def checks_what_it_reads(x, i):
    n = i.item()
    torch._check(n >= 0)
    torch._check(n < 10)
    return x * n


@program
def numbers_that_are_checked(cached):
    call = cached(checks_what_it_reads)
    return [call(tensor(3), torch.tensor(n)) for n in (0, 1, 9)]


def cuts_by_what_it_reads(x, n, limit):
    count = n.item()
    part = x[:count] * 2 if count < limit else x
    return part, part.shape[0], x.new_zeros(count + 1)


@program
def sizes_and_branches_by_a_number_that_is_an_input(cached):
    call = cached(cuts_by_what_it_reads)
    return [call(tensor(6), torch.tensor(n), 4) for n in (2, 3, 5, 1, 0, 3)]


def adds_two_numbers(x, a, b):
    return x * a.item() + b.item(), a.item() == b.item()


@program
def equal_and_unequal_numbers_that_are_inputs(cached):
    call = cached(adds_two_numbers)
    pairs = [(3, 3), (3, 4), (4, 4), (1, 0)]
    return [call(tensor(3), torch.tensor(a), torch.tensor(b)) for a, b in pairs] + [
        call(tensor(3), torch.tensor(0.5, dtype=torch.float64), torch.tensor(2.0)) for _ in range(2)
    ]
