"""`npu_add_rms_norm` with what follows it: which calls become one, and which must not."""

import os

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)

import torch
from fusing import dynamic, fused, half, norm_inputs

from npugx_cache.backend import engines, options
from npugx_cache.backend.lowering import lower

aten, npu = torch.ops.aten, torch.ops.npu


# --- dynamic quantisation


def dynamic_epsilon(x1, x2, gamma, smooth):
    y, _, x = npu.npu_add_rms_norm(x1, x2, gamma, 1e-2)
    values, scale = npu.npu_dynamic_quant(y, smooth_scales=smooth)
    return values, x, scale


def dynamic_no_sum(x1, x2, gamma, smooth):
    return npu.npu_dynamic_quant(npu.npu_add_rms_norm(x1, x2, gamma)[0], smooth_scales=smooth)


def dynamic_no_sum_epsilon(x1, x2, gamma, smooth):
    return npu.npu_dynamic_quant(npu.npu_add_rms_norm(x1, x2, gamma, 1e-2)[0], smooth_scales=smooth)


def late_smooth(x1, x2, gamma, smooth):
    y, _, x = npu.npu_add_rms_norm(x1, x2, gamma)
    values, scale = npu.npu_dynamic_quant(y, smooth_scales=smooth * 2)
    return values, x + 1, scale


@pytest.mark.parametrize(
    "function",
    [dynamic, dynamic_epsilon, dynamic_no_sum, dynamic_no_sum_epsilon, late_smooth],
    ids=lambda f: f.__name__,
)
def test_norm_and_dynamic_quant(function):
    inputs = (*norm_inputs(2, 3, 32), half(32))
    assert fused(function, *inputs) == ["npu_add_rms_norm_dynamic_quant"]
    assert fused(function, *inputs, pattern_fusion_pass=False) == []


def flattened(x1, x2, gamma, *epsilon):
    y, _, x = npu.npu_add_rms_norm(x1, x2, gamma, *epsilon)
    values, scale = npu.npu_dynamic_quant(y.flatten(0, 1))
    return values, scale.view(-1, 1), x


def flattened_epsilon(x1, x2, gamma):
    return flattened(x1, x2, gamma, 1e-2)


@pytest.mark.parametrize("function", [flattened, flattened_epsilon], ids=lambda f: f.__name__)
def test_norm_and_dynamic_quant_of_the_flattened(function):
    assert fused(function, *norm_inputs(2, 3, 32)) == ["npu_add_rms_norm_dynamic_quant"]


def sum_is_used_before(x1, x2, gamma, smooth):
    y, _, x = npu.npu_add_rms_norm(x1, x2, gamma)
    values, scale = npu.npu_dynamic_quant(y, smooth_scales=smooth * x.mean().to(smooth.dtype))
    return values, scale


def other_type(x1, x2, gamma, smooth):
    y, _, x = npu.npu_add_rms_norm(x1, x2, gamma)
    values, scale = npu.npu_dynamic_quant(y, smooth_scales=smooth, dst_type=torch.int8)
    return values, x, scale


def normalised_is_used(x1, x2, gamma, smooth):
    y, _, x = npu.npu_add_rms_norm(x1, x2, gamma)
    return (*npu.npu_dynamic_quant(y, smooth_scales=smooth), x, y + 1)


def rstd_is_used(x1, x2, gamma, smooth):
    y, rstd, x = npu.npu_add_rms_norm(x1, x2, gamma)
    return (*npu.npu_dynamic_quant(y, smooth_scales=smooth), x, rstd)


def written_between(x1, x2, gamma, smooth):
    y, _, x = npu.npu_add_rms_norm(x1 + 1, x2, gamma)
    smooth = smooth + 1
    smooth.mul_(2)
    return (*npu.npu_dynamic_quant(y, smooth_scales=smooth), x)


def gamma_written_between(x1, x2, gamma, smooth):
    gamma = gamma + 1
    y, _, x = npu.npu_add_rms_norm(x1, x2, gamma)
    gamma.mul_(2)
    return (*npu.npu_dynamic_quant(y, smooth_scales=smooth), x, gamma)


@pytest.mark.parametrize(
    "function",
    [
        sum_is_used_before,
        other_type,
        normalised_is_used,
        rstd_is_used,
        written_between,
        gamma_written_between,
    ],
    ids=lambda f: f.__name__,
)
def test_norm_and_dynamic_quant_that_are_not_one(function):
    assert fused(function, *norm_inputs(2, 3, 32), half(32)) == []


def test_calls_on_two_streams_are_not_one():
    from torch._dynamo.variables import streams  # noqa: F401 - registers operators

    graph = lower(dynamic, (*norm_inputs(2, 3, 32), half(32)), None)
    (quant,) = [n for n in graph.graph.nodes if n.target == npu.npu_dynamic_quant.default]
    with graph.graph.inserting_before(quant):
        graph.graph.call_function(torch.ops.streams.join.default, (0, 1))
    engines.load("npugraph_ex").optimise(graph, options.Options())
    assert any(n.target == npu.npu_dynamic_quant.default for n in graph.graph.nodes)


def test_patterns_that_people_register_come_first(monkeypatch):
    from npugx_cache.backend import patterns, register_replacement

    def search(x1, x2, gamma, smooth):
        y, _, x = npu.npu_add_rms_norm.default(x1, x2, gamma)
        values, scale = npu.npu_dynamic_quant.default(y, smooth_scales=smooth)
        return values, x, scale

    def replacement(x1, x2, gamma, smooth):
        y, _, x = npu.npu_add_rms_norm.default(x1, x2, gamma, 1e-6)
        values, scale = npu.npu_dynamic_quant.default(y * smooth)
        return values, x, scale

    monkeypatch.setattr(patterns, "_registered", [])
    inputs = (*norm_inputs(2, 3, 32), half(32))
    assert fused(dynamic, *inputs) == ["npu_add_rms_norm_dynamic_quant"]
    register_replacement(search, replacement, inputs)
    graph = lower(dynamic, inputs, None)
    engines.load("npugraph_ex").optimise(graph, options.Options(inplace_pass=False))
    assert any(node.target == aten.mul.Tensor for node in graph.graph.nodes)


def flattened_otherwise(x1, x2, gamma):
    y, _, x = npu.npu_add_rms_norm(x1, x2, gamma)
    values, scale = npu.npu_dynamic_quant(y.view(6, 8, 16))
    return values, scale.view(-1, 1), x


def test_a_view_that_splits_rows_is_not_fused():
    assert fused(flattened_otherwise, *norm_inputs(2, 3, 4, 32)) == []


# --- casts


def to_copy(y):
    return aten._to_copy.default(y, dtype=torch.float32)


def dtype_cast(y):
    return npu._npu_dtype_cast(y, torch.float32)


def casting(cast, viewed, *epsilon):
    def function(x1, x2, gamma):
        y, _, x = npu.npu_add_rms_norm(x1, x2, gamma, *epsilon)
        return y, x, cast(y.view(-1, y.size(-1)) if viewed else y)

    return function


@pytest.mark.parametrize("epsilon", [(), (1e-2,)], ids=["", "epsilon"])
@pytest.mark.parametrize("viewed", [False, True], ids=["", "view"])
@pytest.mark.parametrize("cast", [to_copy, dtype_cast], ids=lambda f: f.__name__)
def test_norm_and_cast(cast, viewed, epsilon):
    function = casting(cast, viewed, *epsilon)
    assert fused(function, *norm_inputs(2, 3, 32)) == ["npu_add_rms_norm_cast"]
    assert fused(function, *norm_inputs(2, 3, 32, dtype=torch.bfloat16)) == [
        "npu_add_rms_norm_cast"
    ]


def to_the_host(y):
    return aten._to_copy.default(y, dtype=torch.float32, device=torch.device("cpu"))


def to_double(y):
    return aten._to_copy.default(y, dtype=torch.float64)


@pytest.mark.parametrize("cast", [to_the_host, to_double], ids=lambda f: f.__name__)
def test_other_casts_are_not_fused(cast):
    assert fused(casting(cast, False), *norm_inputs(2, 3, 32)) == []


def test_a_cast_of_float32_is_not_fused():
    assert fused(casting(to_copy, False), *norm_inputs(2, 3, 32, dtype=torch.float32)) == []


def other_rows(x1, x2, gamma):
    y, _, x = npu.npu_add_rms_norm(x1, x2, gamma)
    return y, x, to_copy(y.view(-1, 16))


def test_a_cast_of_other_rows_is_not_fused():
    assert fused(other_rows, *norm_inputs(2, 3, 32)) == []


# --- quantisation


def quantising(*epsilon, dtype=1, axis=-1, div_mode=True, with_sum=True, points=True):
    def function(x1, x2, gamma, scales, zero_points):
        y, _, x = npu.npu_add_rms_norm(x1, x2, gamma, *epsilon)
        zero_points = zero_points if points else None
        values = npu.npu_quantize(y, scales, zero_points, dtype, axis, div_mode)
        return (values, x) if with_sum else values

    return function


def quant_inputs(size=32, dtype=torch.float16, points=torch.int32):
    scales = torch.rand(size).add(0.5).npu()
    return (
        *norm_inputs(3, size, dtype=dtype),
        scales,
        torch.ones(size, dtype=points).npu(),
    )


@pytest.mark.parametrize("epsilon", [(), (1e-2,)], ids=["", "epsilon"])
@pytest.mark.parametrize("with_sum", [False, True], ids=["", "sum"])
def test_norm_and_quant(epsilon, with_sum):
    function = quantising(*epsilon, with_sum=with_sum)
    for dtype in (torch.float16, torch.bfloat16):
        assert fused(function, *quant_inputs(dtype=dtype)) == ["npu_add_rms_norm_quant"]


def test_norm_and_quant_without_zero_points():
    assert fused(quantising(points=False), *quant_inputs()) == ["npu_add_rms_norm_quant"]


REFUSED = {
    "rows of 24 bytes": (quantising(), quant_inputs(12)),
    "float32": (quantising(), quant_inputs(dtype=torch.float32)),
    "int8 zero points": (quantising(), quant_inputs(points=torch.int8)),
    "not to int8": (quantising(dtype=3), quant_inputs()),
    "other axis": (quantising(axis=1), quant_inputs()),
    "not divided": (quantising(div_mode=False), quant_inputs()),
    "one scale for all": (
        quantising(),
        (*quant_inputs()[:3], torch.ones(1).npu(), torch.ones(1).int().npu()),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_norm_and_quant_that_are_not_one(case):
    function, inputs = REFUSED[case]
    graph = lower(function, inputs, None)
    engines.load("npugraph_ex").optimise(graph, options.Options())
    names = [str(node.target) for node in graph.graph.nodes]
    assert "npu.npu_quantize.default" in names
    assert not any("add_rms_norm_quant" in name for name in names)
