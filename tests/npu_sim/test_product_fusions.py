"""`bmm` and transposes that are one operator on the NPU, and those that are not."""

import os

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)

import torch
from fusing import fused, half

from npugx_cache.backend import engines, options
from npugx_cache.backend.lowering import lower


def product(x1, x2):
    return torch.bmm(x1, x2).transpose(0, 1) + 1


def product_viewed(x1, x2):
    made = torch.bmm(x1, x2)
    return made.view(made.shape).transpose(1, 0).contiguous()


def product_of_transposed(x1, x2):
    left = x1.transpose(0, 1)
    return torch.bmm(left.expand(left.shape), x2).transpose(0, 1).contiguous()


def product_of_transposed_viewed(x1, x2):
    left = x1.transpose(0, 1)
    left = left.expand(left.shape)
    made = torch.bmm(left.view(left.shape), x2)
    return made.view(made.shape).transpose(-2, -3).contiguous()


def contiguous(x1, x2):
    return torch.bmm(x1, x2).transpose(0, 1).contiguous()


@pytest.mark.parametrize("noops", [True, False], ids=["", "remove_noop_ops=False"])
@pytest.mark.parametrize(
    ("function", "order"),
    [
        (contiguous, [0, 1, 2]),
        (product_viewed, [0, 1, 2]),
        (product_of_transposed, [1, 0, 2]),
        (product_of_transposed_viewed, [1, 0, 2]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_bmm_and_transpose(function, order, noops):
    left = half(2, 5, 128) if order == [0, 1, 2] else half(5, 2, 128)
    inputs = left, half(2, 128, 256)
    assert fused(function, *inputs, remove_noop_ops=noops) == ["npu_transpose_batchmatmul"]
    graph = lower(function, inputs, None)
    engines.load("npugraph_ex").optimise(graph, options.Options(remove_noop_ops=noops))
    (call,) = [n for n in graph.graph.nodes if "transpose_batchmatmul" in str(n.target)]
    assert call.kwargs["perm_x1"] == order


def other_dimensions(x1, x2):
    return torch.bmm(x1, x2).transpose(-1, -2).contiguous()


def product_is_used(x1, x2):
    made = torch.bmm(x1, x2)
    return made.transpose(0, 1).contiguous(), made


def strides_are_seen(x1, x2):
    return torch.bmm(x1, x2).transpose(0, 1)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (contiguous, (half(2, 5, 64), half(2, 64, 256))),
        (contiguous, (half(2, 5, 128), half(2, 128, 96))),
        (contiguous, (half(2, 5, 128).double(), half(2, 128, 256).double())),
        (other_dimensions, (half(2, 5, 128), half(2, 128, 256))),
        (product_is_used, (half(2, 5, 128), half(2, 128, 256))),
        (strides_are_seen, (half(2, 5, 128), half(2, 128, 256))),
        (product, (half(2, 5, 128), half(2, 128, 256))),
    ],
    ids=["K", "N", "dtype", "dimensions", "used", "strides", "strides further down"],
)
def test_bmm_and_transpose_that_are_not_one(function, inputs):
    assert fused(function, *inputs) == []


def test_bmm_of_a_transposed_argument_with_long_rows_keeps_its_transpose():
    inputs = half(2, 512, 128), half(512, 128, 128)
    graph = lower(product_of_transposed, inputs, None)
    engines.load("npugraph_ex").optimise(graph, options.Options())
    (call,) = [n for n in graph.graph.nodes if "transpose_batchmatmul" in str(n.target)]
    assert call.kwargs["perm_x1"] == [0, 1, 2]


def test_bmm_on_the_cpu_stays():
    assert fused(contiguous, torch.randn(2, 5, 128), torch.randn(2, 128, 256)) == []
