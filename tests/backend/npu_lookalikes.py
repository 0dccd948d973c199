"""Operators in the namespace `npu` with the schemas of torch_npu's, on the CPU.

Only to be imported where torch_npu is not: the real ones live in the same namespace.
"""

from __future__ import annotations

import torch

LIBRARY = torch.library.Library("npu", "DEF")


def operator(schema, fake):
    """Define an operator, with what it does and what a trace knows of its result."""

    def decorate(function):
        name = schema.partition("(")[0]
        LIBRARY.define(schema)
        LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"npu::{name}", fake)
        return function

    return decorate


def like(*positions):
    """A fake result: one tensor like each of these arguments; one alone is no tuple."""

    def fake(*args, **_):
        made = tuple(torch.empty_like(args[position]) for position in positions)
        return made if len(made) > 1 else made[0]

    return fake


@operator(
    "npu_rope_cache(Tensor x, Tensor(a!) k, Tensor(b!) v, *, float eps=1e-5) -> (Tensor, Tensor)",
    like(0, 0),
)
def npu_rope_cache(x, k, v, *, eps=1e-5):
    k.add_(x)
    v.mul_(2)
    return x + eps, x - eps


@operator(
    "npu_rope_cache_functional(Tensor x, Tensor k, Tensor v, *, float eps=1e-5)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    like(0, 0, 1, 2),
)
def npu_rope_cache_functional(x, k, v, *, eps=1e-5):
    k, v = k.clone(), v.clone()
    return (*npu_rope_cache(x, k, v, eps=eps), k, v)


@operator(
    "npu_scatter_nd_update_(Tensor(a!) input, Tensor indices, Tensor updates) -> Tensor(a!)",
    lambda x, *_: x,
)
def npu_scatter_nd_update_(x, indices, updates):
    x[indices[:, 0]] = updates
    return x


@operator(
    "npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-6)"
    " -> (Tensor, Tensor, Tensor)",
    lambda x1, x2, gamma, *_: (torch.empty_like(x1), x1.new_empty((len(x1), 1)), x1 + x2),
)
def npu_add_rms_norm(x1, x2, gamma, epsilon=1e-6):
    x = x1 + x2
    rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)
    return x * rstd * gamma, rstd, x


@operator(
    "npu_dynamic_quant(Tensor input, *, Tensor? smooth_scales=None) -> (Tensor, Tensor)",
    lambda x, **_: (torch.empty_like(x, dtype=torch.int8), x.new_empty(x.shape[:-1])),
)
def npu_dynamic_quant(x, *, smooth_scales=None):
    scale = x.abs().amax(-1) / 127
    return (x / scale.unsqueeze(-1)).round().to(torch.int8), scale


@operator("npu_scatter_nd_update(Tensor input, Tensor indices, Tensor updates) -> Tensor", like(0))
def npu_scatter_nd_update(x, indices, updates):
    return npu_scatter_nd_update_(x.clone(), indices, updates)


def define_the_fused_one():
    """The operator that does both; a torch_npu of before has none."""

    def fake(x1, x2, gamma, **_):
        values, scale = torch.empty_like(x1, dtype=torch.int8), x1.new_empty(x1.shape[:-1])
        return values, torch.empty_like(values), x1 + x2, scale, torch.empty_like(scale)

    @operator(
        "npu_add_rms_norm_dynamic_quant(Tensor x1, Tensor x2, Tensor gamma, *,"
        " Tensor? smooth_scale1=None, Tensor? smooth_scale2=None, Tensor? beta=None,"
        " float epsilon=1e-6, bool[]? output_mask=None)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        fake,
    )
    def fused(x1, x2, gamma, *, smooth_scale1=None, epsilon=1e-6, output_mask=None, **_):
        y, _, x = npu_add_rms_norm(x1, x2, gamma, epsilon)
        values, scale = npu_dynamic_quant(y, smooth_scales=smooth_scale1)
        return values, torch.empty_like(values), x, scale, torch.empty_like(scale)
