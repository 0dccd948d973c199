"""Passes on graphs that mutate and alias: what may go, and what must stay."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from npugx_cache.backend.graph import to_program
from npugx_cache.backend.passes.dead_code import remove_dead_code
from npugx_cache.backend.passes.noop import remove_noops
from npugx_cache.backend.runtime import bind_program

aten = torch.ops.aten


def traced(function, *inputs):
    return make_fx(function)(*inputs)


def targets(graph_module):
    return [n.target for n in graph_module.graph.nodes if n.op == "call_function"]


def test_a_view_to_the_same_shape_is_dropped():
    graph = traced(lambda x: aten.view.default(x, [2, 3]) * 2, torch.ones(2, 3))
    assert remove_noops(graph.graph) == 1
    assert targets(graph) == [aten.mul.Tensor]


def test_a_view_that_changes_the_shape_stays():
    graph = traced(lambda x: aten.view.default(x, [6]) * 2, torch.ones(2, 3))
    assert remove_noops(graph.graph) == 0


def test_an_alias_that_is_returned_stays_a_tensor_of_its_own():
    graph = traced(lambda x: aten.alias.default(x), torch.ones(3))
    assert remove_noops(graph.graph) == 0
    x = torch.ones(3)
    assert graph(x) is not x


def test_an_alias_that_is_written_to_stays():
    def function(x):
        y = aten.view.default(x, [3])
        return aten.add_.Tensor(y, 1)

    graph = traced(function, torch.ones(3))
    assert remove_noops(graph.graph) == 0


def test_nothing_is_dropped_next_to_an_op_that_changes_metadata():
    def function(x):
        y = aten.view.default(x, [2, 3])
        z = y * 2
        y.t_()
        return z, y + 0

    graph = traced(function, torch.ones(2, 3))
    assert remove_noops(graph.graph) == 0


def test_unused_pure_calls_go_and_writes_stay():
    def function(x):
        unused = x.sin().cos()  # noqa: F841
        x.mul_(2)
        return x.sum()

    graph = traced(function, torch.ones(3))
    assert remove_dead_code(graph.graph) == 2
    assert targets(graph) == [aten.mul_.Tensor, aten.sum.default]


def test_an_unused_random_call_stays_because_it_advances_the_generator():
    def function(x):
        torch.rand_like(x)
        return x + 1

    graph = traced(function, torch.ones(3))
    assert remove_dead_code(graph.graph) == 0


STEPS = st.sampled_from(
    ["add_", "mul", "view", "t", "slice", "alias", "relu", "sum", "clone", "out"]
)


def program_of(steps):
    """A small function over one matrix from a list of steps; aliases and writes as they come."""

    def function(x):
        value, kept = x, []
        for step in steps:
            if step == "add_":
                value.add_(1)
            elif step == "mul":
                value = value * 2
            elif step == "view":
                value = (
                    aten.view.default(value, list(value.shape)) if value.is_contiguous() else value
                )
            elif step == "t":
                value = value.t() if value.dim() == 2 else value
            elif step == "slice":
                value = (
                    aten.slice.Tensor(value, 0, 0, 9223372036854775807) if value.dim() else value
                )
            elif step == "alias":
                value = aten.alias.default(value)
            elif step == "relu":
                value = value.relu()
            elif step == "sum":
                kept.append(value.sum())
            elif step == "clone":
                value = value.clone()
            elif step == "out":
                kept.append(value)
        return [*kept, value]

    return function


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=10))
def test_passes_keep_results_writes_and_aliasing_on_random_graphs(steps):
    function = program_of(steps)
    graph = traced(function, torch.ones(2, 3))
    remove_noops(graph.graph)
    remove_dead_code(graph.graph)
    graph.recompile()
    program, constants = to_program(graph)
    x, y = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3)
    got, want = bind_program(program, constants)(x), function(y)
    torch.testing.assert_close(x, y)
    for left, right in zip(got, want, strict=True):
        torch.testing.assert_close(left, right)
        assert left.stride() == right.stride()
    shares = [[a.data_ptr() == b.data_ptr() for b in [x, *got]] for a in [x, *got]]
    assert shares == [[a.data_ptr() == b.data_ptr() for b in [y, *want]] for a in [y, *want]]


@pytest.mark.parametrize("engine", ["npugraph_ex", "aot_eager"])
def test_both_engines_run_the_same_graph(engine):
    from npugx_cache.backend import engines, options

    graph = traced(lambda x: aten.alias.default(x.view(2, 3)) * 2, torch.ones(2, 3))
    reports = engines.load(engine).optimise(graph, options.Options())
    assert [r.name for r in reports] == (
        ["remove_noop_ops", "remove_dead_ops"] if engine == "npugraph_ex" else []
    )
    program, constants = to_program(graph)
    torch.testing.assert_close(
        bind_program(program, constants)(torch.ones(2, 3)), torch.full((2, 3), 2.0)
    )
