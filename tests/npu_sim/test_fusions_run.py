"""Fused operators through capture, and through the cache."""

import os

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)

import fused_kernels
import torch
from fusing import dynamic, half, norm_inputs
from torch.fx.experimental.proxy_tensor import make_fx

from npugx_cache import cache_compile
from npugx_cache.backend.compile import compile_graph


def test_a_changing_size_is_fused_and_captured():
    inputs = (*norm_inputs(2, 3, 32), half(32))
    with torch.no_grad():
        graph = make_fx(dynamic, tracing_mode="symbolic")(*inputs)
    run = compile_graph(graph, None, {})
    fused_kernels.calls.clear()
    for rows in (2, 4, 2, 4):
        inputs = (*norm_inputs(rows, 3, 32), half(32))
        torch.testing.assert_close(run(*inputs), dynamic(*inputs), rtol=0, atol=0)
    assert fused_kernels.calls["npu_add_rms_norm_dynamic_quant"] == 2  # once for each capture


def test_the_fusions_are_part_of_the_key(tmp_path):
    inputs = (*norm_inputs(2, 3, 32), half(32))
    for _ in range(2):
        cached = cache_compile(dynamic, cache_dir=tmp_path)
        torch.testing.assert_close(cached(*inputs), dynamic(*inputs), rtol=0, atol=0)
    assert cached.cache_info().hits == 1
    unfused = cache_compile(dynamic, cache_dir=tmp_path, options={"pattern_fusion_pass": False})
    torch.testing.assert_close(unfused(*inputs), dynamic(*inputs), rtol=0, atol=0)
    assert unfused.cache_info().misses == 1
