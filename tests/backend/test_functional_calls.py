"""Functionalised graphs, as AOTAutograd makes them, and functional forms of writing operators."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import aot_module_simplified

from npugx_cache.backend import compile_fx, engines, options

aten = torch.ops.aten

LIBRARY = torch.library.Library("npugx_functional", "DEF")
LIBRARY.define("bump_(Tensor(a!) x, float by) -> ()")
LIBRARY.define("write(Tensor x, Tensor(a!) out, Tensor(b!)? other=None) -> Tensor")
LIBRARY.define("bump_all_(Tensor(a!)[] xs) -> ()")


@torch.library.impl(LIBRARY, "bump_", "CompositeExplicitAutograd")
def _bump_(x, by):
    x.add_(by)


@torch.library.impl(LIBRARY, "write", "CompositeExplicitAutograd")
def _write(x, out, other=None):
    out.copy_(x * 3)
    if other is not None:
        other.add_(1)
    return x * 2


@torch.library.impl(LIBRARY, "bump_all_", "CompositeExplicitAutograd")
def _bump_all_(xs):
    for x in xs:
        x.add_(1)


ops = torch.ops.npugx_functional


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def through_aot(function, *inputs, **given):
    """What is left in the functional graph of a function after the passes; runs it as well."""
    seen = []

    def compiler(graph_module, example_inputs):
        graph = copy.deepcopy(graph_module)
        engines.load("npugraph_ex").optimise(graph, options.parse(given), distinct_inputs=True)
        seen.append([n.target for n in graph.graph.nodes if n.op == "call_function"])
        run = compile_fx(graph_module, example_inputs, given)

        def boxed(arguments):
            values = list(arguments)
            arguments.clear()
            return run(*values)

        boxed._boxed_call = True
        return boxed

    def backend(graph_module, example_inputs):
        return aot_module_simplified(
            graph_module, example_inputs, fw_compiler=compiler, keep_inference_input_mutations=True
        )

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    with torch.no_grad():
        mine, plain = [x.clone() for x in inputs], [x.clone() for x in inputs]
        got, want = compiled(*mine), function(*plain)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        torch.testing.assert_close(mine, plain, rtol=0, atol=0)
    return seen[0]


def cache_step(cache, at, key):
    cache.index_copy_(1, at, key)
    return cache.sum(1) * 2


CACHE = torch.zeros(2, 8), torch.tensor([3]), torch.ones(2, 1)


def test_a_cache_that_is_written_costs_no_copy():
    left = through_aot(cache_step, *CACHE)
    assert left == [aten.index_copy_.default, aten.sum.dim_IntList, aten.mul_.Tensor]


def test_without_the_option_the_copies_stay():
    left = through_aot(cache_step, *CACHE, input_inplace_pass=False)
    assert left == [
        aten.index_copy.default,
        aten.sum.dim_IntList,
        aten.mul_.Tensor,
        aten.copy_.default,
    ]


def test_auto_functionalized_operators_write_in_place_again():
    def function(cache, x):
        ops.bump_(cache, 0.5)
        y = ops.write(x, cache)
        ops.bump_(y, 1.0)
        return y

    left = through_aot(function, torch.zeros(3), torch.ones(3))
    assert left == [ops.bump_.default, ops.write.default, ops.bump_.default]


def test_views_lists_and_absent_arguments_of_auto_functionalized_operators():
    def function(cache, x):
        ops.write(x, cache[:, 1], cache[:, 2])
        ops.bump_all_([cache[0], cache[1]])
        return ops.write(x, x.clone(), None)

    left = through_aot(function, torch.zeros(2, 4), torch.ones(2))
    assert torch.ops.higher_order.auto_functionalized_v2 not in left
    assert ops.bump_all_.default in left


def test_a_slice_that_is_written_becomes_a_write_to_the_slice():
    def function(cache, x):
        cache[:, 1:2].add_(x)
        return cache.sum()

    left = through_aot(function, torch.zeros(2, 4), torch.ones(2, 1))
    assert aten.slice_scatter.default not in left
    assert left.count(aten.copy_.default) == 1  # into the slice, not of the cache


def test_a_returned_view_of_the_input_keeps_its_copy():
    def function(cache, x):
        cache.add_(x)
        return cache[0]

    left = through_aot(function, torch.zeros(2, 4), torch.ones(2, 4))
    assert aten.copy_.default in left


def test_the_reference_engine_runs_functional_graphs_too():
    compiled = torch.compile(cache_step, backend=aot_autograd(fw_compiler=compile_fx))
    with torch.no_grad():
        mine, plain = [x.clone() for x in CACHE], [x.clone() for x in CACHE]
        torch.testing.assert_close(compiled(*mine), cache_step(*plain))
        torch.testing.assert_close(mine, plain)


def test_functional_and_scattering_operators_of_an_npu_write_in_place(surroundings):
    seen = surroundings.run(Path(__file__).parent / "npu_writes.py")
    assert seen["rows"] == ["aten.view.default", "npu.npu_scatter_nd_update_.default"]
    assert seen["step"] == [
        "npu.npu_rope_cache.default",
        "<built-in function getitem>",
        "<built-in function getitem>",
        "aten.mul_.Tensor",
    ]
    assert seen["kept"] == [
        "aten.mul.Tensor",
        "aten.clone.default",
        "npu.npu_rope_cache.default",
        "<built-in function getitem>",
    ]
    # There is no fused operator here.
    assert "npu.npu_dynamic_quant.default" in seen["quantised"]
    count, calls = seen["no fused one"]
    assert (count, len(calls)) == (0, 7)

    name = "npu_add_rms_norm_dynamic_quant"
    for kind, epsilon, views in (("fused", 1e-6, False), ("flat", 0.25, True)):
        named = f"{{'smooth_scale1': None, 'epsilon': {epsilon}, 'output_mask': [True, False]}}"
        getitem = f"<built-in function getitem>({name}_default"
        expected = [
            f"{name}_default = npu.{name}.default(arg0_1, arg1_1, arg2_1) {named}",
            f"getitem_5 = {getitem}, 0) {{}}",
            *(["view_default = aten.view.default(getitem_5, [4, 3]) {}"] if views else []),
            f"getitem_6 = {getitem}, 3) {{}}",
            *(["view_default_1 = aten.view.default(getitem_6, [4, 1]) {}"] if views else []),
            f"getitem_7 = {getitem}, 2) {{}}",
        ]
        assert seen[kind] == [1, expected]
    count, calls = seen["alone"]
    assert (count, [each.split(" = ")[1].split("(")[0] for each in calls]) == (
        1,
        [f"npu.{name}.default", "<built-in function getitem>"],
    )
