"""Programs with custom operators made by `torch.library.Library`, which loads no compiler."""

from __future__ import annotations

import typing

import torch

PROGRAMS: dict[str, typing.Callable] = {}

LIBRARY = torch.library.Library("npugx_tests", "DEF")
LIBRARY.define("scaled_add(Tensor x, Tensor y, float scale=2.0) -> Tensor")
LIBRARY.define("bump_(Tensor(a!) x, int by) -> Tensor(a!)")
LIBRARY.define("write_into(Tensor x, Tensor(a!) out) -> ()")
LIBRARY.define("two(Tensor x) -> (Tensor, Tensor)")
LIBRARY.define("stack_all(Tensor[] xs, *, int? dim=None) -> Tensor")


@torch.library.impl(LIBRARY, "scaled_add", "CompositeExplicitAutograd")
def scaled_add(x, y, scale=2.0):
    return x + y * scale


@torch.library.impl(LIBRARY, "bump_", "CompositeExplicitAutograd")
def bump_(x, by):
    return x.add_(by)


@torch.library.impl(LIBRARY, "write_into", "CompositeExplicitAutograd")
def write_into(x, out):
    out.copy_(x * 3)


@torch.library.impl(LIBRARY, "two", "CompositeExplicitAutograd")
def two(x):
    return x + 1, x.sum()


@torch.library.impl(LIBRARY, "stack_all", "CompositeExplicitAutograd")
def stack_all(xs, *, dim=None):
    return torch.stack(xs, dim or 0)


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def functional_ops(x, y):
    ops = torch.ops.npugx_tests
    a, b = ops.two(x)
    return ops.scaled_add(a, y, 0.5) * b, ops.scaled_add(x, y), ops.stack_all([x, y], dim=1)


@program
def functional_custom_operators(cached):
    return [cached(functional_ops)(tensor(3), tensor(3, seed=1))]


def in_place_ops(x, out):
    before = x * 1
    ops = torch.ops.npugx_tests
    y = ops.bump_(x, 2)
    ops.write_into(y, out)
    return before, y + out


@program
def custom_operators_that_write_to_their_arguments(cached):
    x, out = tensor(3), torch.zeros(3)
    return [cached(in_place_ops)(x, out), x, out]


def bumps_a_temporary(x):
    y = x * 2
    torch.ops.npugx_tests.bump_(y, 3)
    torch.ops.npugx_tests.write_into(y, x)
    return y


@program
def custom_operators_that_write_to_temporaries(cached):
    x = tensor(3)
    return [cached(bumps_a_temporary)(x), x]
