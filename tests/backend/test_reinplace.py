"""Writing over what is not needed any more: intermediates, inputs, views; and what must stay."""

import pytest
import torch

from npugx_cache.backend.lowering import lower
from npugx_cache.backend.passes.copies import remove_self_copies
from npugx_cache.backend.passes.copy_back import recover_view_inplace, reinplace_inputs
from npugx_cache.backend.passes.reinplace import reinplace

aten = torch.ops.aten


def rewritten(run, function, *inputs, **options):
    graph = lower(function, inputs, None)
    count = run(graph.graph, **options)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    graph.graph.lint()
    return count, [n.target for n in graph.graph.nodes if n.op == "call_function"], graph


def same_as_eager(graph, function, *inputs):
    mine, plain = [x.clone() for x in inputs], [x.clone() for x in inputs]
    torch.testing.assert_close(graph(*mine), function(*plain), rtol=0, atol=0)
    torch.testing.assert_close(mine, plain, rtol=0, atol=0)


# --- intermediates


def test_a_chain_of_intermediates_is_written_in_place():
    def function(x):
        return ((x * 2) + 1).relu()

    count, left, graph = rewritten(reinplace, function, torch.ones(3))
    assert (count, left) == (2, [aten.mul.Tensor, aten.add_.Tensor, aten.relu_.default])
    same_as_eager(graph, function, torch.randn(3))


def test_an_input_is_never_written_over():
    assert rewritten(reinplace, lambda x: x * 2, torch.ones(3))[0] == 0


def test_a_value_that_is_still_needed_or_returned_is_not_written_over():
    def needed(x):
        y = x * 2
        return (y + 1) * y

    def returned(x):
        y = x * 2
        return y, y + 1

    def seen_through_a_view(x):
        y = x * 2
        view = y[0]
        return y + 1, view

    _, left, _ = rewritten(reinplace, needed, torch.ones(3))
    assert left == [aten.mul.Tensor, aten.add.Tensor, aten.mul_.Tensor]
    assert rewritten(reinplace, returned, torch.ones(3))[0] == 0
    assert rewritten(reinplace, seen_through_a_view, torch.ones(3))[0] == 0


def test_two_views_that_overlap_are_not_subtracted_in_place():
    def function(x):  # what torch.diff does
        y = x * 2
        return y[1:] - y[:-1]

    assert rewritten(reinplace, function, torch.arange(4.0))[0] == 0
    count, _, graph = rewritten(reinplace, lambda x: torch.diff(x * 2), torch.arange(4.0))
    assert count == 0
    same_as_eager(graph, lambda x: torch.diff(x * 2), torch.tensor([1.0, 2.0, 4.0, 8.0]))


def test_as_many_elements_are_not_the_same_sizes():
    def function(x, y):
        return (x * 2) + y  # [2] + [1, 2]

    assert rewritten(reinplace, function, torch.ones(2), torch.ones(1, 2))[0] == 0


def test_a_part_of_an_intermediate_is_not_returned_as_if_it_were_all_of_it():
    assert rewritten(reinplace, lambda x: (x * 2)[:2] + 1, torch.ones(3))[0] == 0


def test_another_type_or_other_strides_are_not_written_over():
    assert rewritten(reinplace, lambda x: (x + 1) / 2, torch.ones(3, dtype=torch.int64))[0] == 0
    assert rewritten(reinplace, lambda x: (x + 1).expand(2, 3) * 2, torch.ones(1, 3))[0] == 0


def test_one_value_given_twice_is_not_written_over():
    def function(x):
        y = x * 2
        return y + y

    assert rewritten(reinplace, function, torch.ones(3))[0] == 0


@pytest.mark.parametrize(
    ("scatter", "view"),
    [
        (lambda y, x: aten.slice_scatter.default(y, x[:1], 0, 0, 1), aten.slice.Tensor),
        (lambda y, x: aten.select_scatter.default(y, x[0], 0, 1), aten.select.int),
        (lambda y, x: aten.diagonal_scatter.default(y, x[0, :2]), aten.diagonal.default),
    ],
)
def test_a_scatter_becomes_a_write_to_a_view(scatter, view):
    def function(x):
        return scatter(x * 2, x)

    count, left, graph = rewritten(reinplace, function, torch.ones(2, 3))
    assert count == 1
    assert left[-2:] == [view, aten.copy_.default]
    same_as_eager(graph, function, torch.randn(2, 3))


# --- copies back into what was read


def test_an_input_that_is_copied_back_is_written_in_place():
    def function(x):
        x.copy_(x + 1)

    count, left, graph = rewritten(reinplace_inputs, function, torch.ones(3))
    assert (count, left) == (1, [aten.add_.Tensor])
    same_as_eager(graph, function, torch.randn(3))


def test_a_copy_and_its_writes_become_writes_to_the_input():
    def function(x):
        y = x.clone()
        y.mul_(2)
        y.add_(1)
        x.copy_(y)

    count, left, graph = rewritten(reinplace_inputs, function, torch.ones(3))
    assert (count, left) == (1, [aten.mul_.Tensor, aten.add_.Tensor])
    same_as_eager(graph, function, torch.randn(3))


def reads_another_input(x, other):
    y = x + 1
    z = other * 2
    x.copy_(y)
    return z


def test_inputs_may_overlap_unless_the_graph_was_functionalised():
    inputs = torch.ones(3), torch.ones(3)
    assert rewritten(reinplace_inputs, reads_another_input, *inputs)[0] == 0
    count, left, _ = rewritten(reinplace_inputs, reads_another_input, *inputs, distinct_inputs=True)
    assert (count, left) == (1, [aten.add_.Tensor, aten.mul.Tensor])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.copy_(y := x + 1), y)[1],  # returned: it would become the input
        lambda x: (y := x + 1, x * 2, x.copy_(y))[1],  # x is read in between
        lambda x: (y := x + 1, x.copy_(y), x.add_(1), y * 2)[-1],  # y is read after x changed
        lambda x: (y := x + 1, x.copy_(y), y.add_(1), y * 2)[-1],  # y changes after the copy
        lambda x: x.copy_(x + x.t()),  # the argument overlaps itself in another order
        lambda x: x.t().copy_(x + 1),  # not the same elements
        lambda x: x.copy_((x + 1)[:1]),  # broadcast
    ],
)
def test_a_copy_back_that_would_show_stays(function):
    def run(graph):
        return reinplace_inputs(graph) + recover_view_inplace(graph)

    count, _, graph = rewritten(run, function, torch.ones(3, 3))
    assert count == 0
    same_as_eager(graph, function, torch.randn(3, 3))


def test_a_write_through_views_is_recovered():
    def function(x, at, value):
        flat = x.view(-1, 3)
        x.copy_(aten.index_put.default(flat, [at], value).view(2, 2, 3))

    inputs = torch.ones(2, 2, 3), torch.tensor([1]), torch.zeros(1, 3)
    assert rewritten(reinplace_inputs, function, *inputs, distinct_inputs=True)[0] == 0
    # The value may overlap what is written to; only a functionalised graph says that it doesn't.
    assert rewritten(recover_view_inplace, function, *inputs)[0] == 0
    count, left, graph = rewritten(recover_view_inplace, function, *inputs, distinct_inputs=True)
    assert (count, left) == (1, [aten.view.default, aten.index_put_.default])
    same_as_eager(graph, function, torch.randn(2, 2, 3), torch.tensor([2]), torch.randn(1, 3))


# --- self copies


def test_a_copy_onto_itself_goes():
    def function(x):
        x.copy_(x)
        y = x.add_(1)
        x.copy_(y)
        x.view(-1).copy_(y.view(-1))
        return x * 2

    count, left, graph = rewritten(remove_self_copies, function, torch.ones(2, 3))
    assert (count, left) == (3, [aten.add_.Tensor, aten.mul.Tensor])
    same_as_eager(graph, function, torch.randn(2, 3))


def test_a_copy_onto_other_elements_stays():
    def function(x):
        x[:2].copy_(x[1:])
        x.copy_(x.t())

    assert rewritten(remove_self_copies, function, torch.ones(3, 3))[0] == 0
