"""The vendor's own backend on the same device: what it fuses, and how it updates tasks."""

import os

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)

import attention
import fused_kernels
import npu_sim
import torch
from attention import SEEN, compiled, inputs, score
from fusing import dynamic, half, norm_inputs

from npugx_cache import cache_compile

npu_sim.load_vendors()
aten, npu = torch.ops.aten, torch.ops.npu


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def flattened(x1, x2, gamma):
    y, _, x = npu.npu_add_rms_norm(x1, x2, gamma, 1e-2)
    values, scale = npu.npu_dynamic_quant(y.flatten(0, 1))
    return values, scale.view(-1, 1), x


def cast(x1, x2, gamma):
    y, _, x = npu.npu_add_rms_norm(x1, x2, gamma)
    return y, x, y.to(torch.float32)


def quant(x1, x2, gamma, scales):
    y, _, x = npu.npu_add_rms_norm(x1, x2, gamma)
    return npu.npu_quantize(y, scales, None, 1, -1), x


def product(x1, x2):
    return torch.matmul(x1.transpose(0, 1), x2).transpose(0, 1).contiguous()


def plain_norm(x1, x2, gamma):
    y, rstd, x = npu.npu_add_rms_norm(x1, x2, gamma)
    return y.to(torch.float32), x, rstd


CASES = {
    dynamic: lambda: (*norm_inputs(2, 3, 32), half(32)),
    flattened: lambda: norm_inputs(2, 3, 32),
    cast: lambda: norm_inputs(2, 3, 32),
    quant: lambda: (*norm_inputs(3, 32), torch.rand(32).add(0.5).npu()),
    product: lambda: (half(5, 2, 128), half(2, 128, 256)),
    plain_norm: lambda: norm_inputs(2, 3, 32),
}


def run(function, *given):
    """The results, and the fused operators' kernels that ran."""
    fused_kernels.calls.clear()
    with torch.no_grad():
        return function(*given), sorted(fused_kernels.calls)


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_the_vendor_fuses_the_same(function, tmp_path):
    given = CASES[function]()
    options = {"force_eager": True}
    theirs = torch.compile(function, backend="npugraph_ex", dynamic=False, options=options)
    ours = cache_compile(function, dynamic=False, options=options, cache_dir=tmp_path)
    want, kernels = run(theirs, *given)
    got, used = run(ours, *given)
    assert used == kernels
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def twice(q, k, v, first, second):
    return score(q * 2, k, v, [first, second]) + score(q, k + 1, v, [second, 2])


def test_the_vendor_updates_in_the_same_order():
    theirs = torch.compile(twice, backend="npugraph_ex", dynamic=True)
    ours = compiled(twice, *inputs(5, 3), 3, 4)
    tensors = inputs()
    q, k, v = (each.cpu() for each in tensors)
    for lengths in ([2, 4], [3, 5], [4, 6]):
        seen = []
        want = attention.attend(q * 2, k, v, lengths, 0.5)
        want += attention.attend(q, k + 1, v, [lengths[1], 2], 0.5)
        for function in (ours, theirs):
            with torch.no_grad(), npu_sim.issued() as found:
                got = function(*tensors, *lengths)
            torch.testing.assert_close(got.cpu(), want)
            seen.append([each.what for each in found if each.what in SEEN])
        assert seen[0] == seen[1]
        assert "update begin" in seen[0]
