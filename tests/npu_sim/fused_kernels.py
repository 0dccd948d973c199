"""Kernels for fused operators of torch_npu, which the simulated device has none for.

Written from what the operators are documented to do, with torch's own operators. `calls` counts.
"""

from __future__ import annotations

from collections import Counter

import npu_sim
import torch

npu_sim.install()  # before, because a kernel here goes before one there
calls: Counter[str] = Counter()
_library = torch.library.Library("npu", "IMPL")


def kernel(function):
    """Register a function as the device's kernel of the operator of its name."""

    def counted(*args, **kwargs):
        calls[function.__name__] += 1
        return function(*args, **kwargs)

    _library.impl(function.__name__, counted, "PrivateUse1", allow_override=True)
    return function


@kernel
def npu_add_rms_norm(x1, x2, gamma, epsilon=1e-6):
    x = x1 + x2
    wide = x.float()
    rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (wide * rstd).to(x.dtype) * gamma, rstd, x


@kernel
def npu_dynamic_quant(
    x, *, smooth_scales=None, group_index=None, dst_type=None, quant_mode="pertoken", **_
):
    wide = x.float() if smooth_scales is None else x.float() * smooth_scales
    scale = wide.abs().amax(-1) / (7 if dst_type is not None else 127)
    return (wide / scale.unsqueeze(-1)).round().to(torch.int8), scale


@kernel
def npu_quantize(x, scales, zero_points, dtype, axis=1, div_mode=True):
    scaled = x.float() / scales if div_mode else x.float() * scales
    if zero_points is not None:
        scaled = scaled + zero_points
    return scaled.round().clamp(-128, 127).to(torch.int8)


@kernel
def _npu_dtype_cast(x, dtype):
    return torch.empty_like(x, dtype=dtype).copy_(x)


@kernel
def npu_add_rms_norm_dynamic_quant(
    x1, x2, gamma, *, smooth_scale1=None, epsilon=1e-6, output_mask=None, **_
):
    assert list(output_mask) == [True, False]
    y, _, x = npu_add_rms_norm(x1, x2, gamma, epsilon)
    values, scale = npu_dynamic_quant(y, smooth_scales=smooth_scale1)
    return values, torch.empty_like(values), x, scale, torch.empty_like(scale)


@kernel
def npu_add_rms_norm_cast(x1, x2, gamma, epsilon=1e-6):
    y, rstd, x = npu_add_rms_norm(x1, x2, gamma, epsilon)
    return y.float(), y, rstd, x


@kernel
def npu_add_rms_norm_quant(
    x1, x2, gamma, scales1, zero_points1, *_, axis=-1, epsilon=1e-6, div_mode=True, **__
):
    y, _, x = npu_add_rms_norm(x1, x2, gamma, epsilon)
    values = npu_quantize(y, scales1, zero_points1, 1, axis, div_mode)
    return values, torch.empty_like(values), x


@kernel
def npu_transpose_batchmatmul(left, right, *, perm_x1=None, **_):
    return torch.bmm(left.permute(perm_x1), right).transpose(0, 1).contiguous()
