"""Passes on graphs that mutate and alias: what may go, and what must stay."""

import pytest
import torch
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


@pytest.mark.parametrize("engine", ["npugraph_ex", "aot_eager"])
def test_both_engines_run_the_same_graph(engine):
    from npugx_cache.backend import engines, options

    graph = traced(lambda x: aten.alias.default(x.view(2, 3)) * 2, torch.ones(2, 3))
    reports = engines.load(engine).optimise(graph, options.Options())
    changed = [report for report in reports if report.rewrites]
    assert changed == ([("remove_noop_ops", 2, 2)] if engine == "npugraph_ex" else [])
    program, constants = to_program(graph)
    torch.testing.assert_close(
        bind_program(program, constants)(torch.ones(2, 3)), torch.full((2, 3), 2.0)
    )


def test_a_view_that_nobody_sees_through_becomes_a_reshape():
    from npugx_cache.backend.passes.view_to_reshape import views_to_reshapes

    def function(x):
        y, z = x * 2, x * 3
        written = aten.view.default(y, [6])
        written.add_(1)
        return aten.view.default(z, [6]) + 1, y.sum(), aten.view.default(x, [6])

    graph = traced(function, torch.ones(2, 3))
    assert views_to_reshapes(graph.graph) == 1
    assert targets(graph).count(aten.view.default) == 2
    torch.testing.assert_close(graph(torch.ones(2, 3)), function(torch.ones(2, 3)))
