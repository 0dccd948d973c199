"""What the tests of fusions have in common: inputs, and what the passes make of a function."""

from __future__ import annotations

import fused_kernels  # noqa: F401 - registers kernels
import npu_sim
import torch

from npugx_cache.backend import engines, options
from npugx_cache.backend.lowering import lower

npu_sim.install()


def half(*size, dtype=torch.float16):
    return torch.randn(*size).to(dtype).npu()


def norm_inputs(*size, dtype=torch.float16):
    return half(*size, dtype=dtype), half(*size, dtype=dtype), half(size[-1], dtype=dtype)


def optimised(function, *inputs, **chosen):
    """The graph of a function after all passes, its results compared with the function's own."""
    graph = lower(function, inputs, None)
    engines.load("npugraph_ex").optimise(graph, options.Options(**chosen))
    got, want = graph(*inputs), function(*inputs)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    for mine, theirs in zip(*map(torch.utils._pytree.tree_leaves, (got, want)), strict=True):
        assert mine.stride() == theirs.stride()
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def fused(function, *inputs, **chosen):
    """The fused operators in a function's graph."""
    names = [str(target) for target in optimised(function, *inputs, **chosen)]
    return [
        name.removeprefix("npu.").removesuffix(".default")
        for name in names
        if "add_rms_norm_" in name or "transpose_batchmatmul" in name
    ]


def dynamic(x1, x2, gamma, smooth):
    y, _, x = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma)
    values, scale = torch.ops.npu.npu_dynamic_quant(y, smooth_scales=smooth)
    return values, x, scale
