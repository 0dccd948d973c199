"""Functional operators of torch_npu become those that write: by the schemas of the real wheel."""

import os

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)

import npu_sim
import torch

from npugx_cache.backend import engines, options
from npugx_cache.backend.lowering import lower
from npugx_cache.private import schemas

npu_sim.install()
npu = torch.ops.npu

WRITING = {
    "npu_kv_rmsnorm_rope_cache_v2_functional": ("npu_kv_rmsnorm_rope_cache_v2", [5, 6]),
    "npu_mla_prolog_v3_functional": ("npu_mla_prolog_v3", [9, 10]),
    "npu_add_rms_norm_v2_functional": ("npu_add_rms_norm_v2", [0, 1]),
}


@pytest.mark.parametrize("name", WRITING)
def test_what_a_functional_operator_would_write_to(name):
    variant = schemas.mutating_variant(getattr(npu, name).default)
    other, positions = WRITING[name]
    assert variant == getattr(npu, other).default
    arguments = schemas.schema_of(variant).arguments
    assert [i for i, each in enumerate(arguments) if each.written] == positions


def optimised(function, *inputs):
    graph = lower(function, inputs, None)
    engines.load("npugraph_ex").optimise(graph, options.Options(), distinct_inputs=True)
    return [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]


def norm(x1, x2, gamma):
    rstd, y, x = npu.npu_add_rms_norm_v2_functional(x1, x2, gamma)
    x1.copy_(y)
    x2.copy_(x)
    return rstd


def test_a_norm_writes_over_its_arguments():
    inputs = torch.ones(2, 32).npu(), torch.ones(2, 32).npu(), torch.ones(32).npu()
    assert optimised(norm, *inputs) == ["npu.npu_add_rms_norm_v2.default"]


def update(cache, at, value):
    cache.copy_(npu.scatter_update(cache.view(-1, 4, 2), at, value, -2).view(2, 2, 4, 2))


def update_rows(cache, at, value):
    cache.copy_(npu.npu_scatter_nd_update(cache.view(-1, 2), at, value).view(2, 2, 4, 2))


def update_quantised(cache, at, value, scales):
    written = npu.npu_quant_scatter(cache.view(-1, 4, 2), at, value, scales)
    cache.copy_(written.view(2, 2, 4, 2))


def test_a_cache_seen_through_a_view_is_written_in_place():
    cache, at = torch.zeros(2, 2, 4, 2).npu(), torch.tensor([0, 1, 2, 3]).npu()
    view = "aten.view.default"
    value = torch.ones(4, 1, 2).npu()
    assert optimised(update, cache, at, value) == [view, "npu.scatter_update_.default"]
    rows = torch.tensor([[0], [2]]).npu(), torch.ones(2, 2).npu()
    assert optimised(update_rows, cache, *rows) == [view, "npu.npu_scatter_nd_update_.default"]
    inputs = cache.to(torch.int8), at.int(), value, torch.ones(2).npu()
    assert optimised(update_quantised, *inputs) == [view, "npu.npu_quant_scatter_.default"]
