"""Programs with `torch.library.custom_op`, whose first call imports Dynamo by itself."""

from __future__ import annotations

import typing

import torch

PROGRAMS: dict[str, typing.Callable] = {}


@torch.library.custom_op("npugx_tests_custom::soft", mutates_args=())
def soft(x: torch.Tensor, by: float) -> torch.Tensor:
    return torch.tanh(x) * by


@soft.register_fake
def _(x, by):
    return torch.empty_like(x)


@torch.library.custom_op("npugx_tests_custom::grow", mutates_args={"x"})
def grow(x: torch.Tensor) -> None:
    x.mul_(2)


def uses_custom_ops(x):
    grow(x)
    return soft(x, 0.5) + 1


def custom_op(cached):
    x = torch.arange(3.0)
    return [cached(uses_custom_ops)(x), x]


PROGRAMS["custom_op"] = custom_op
