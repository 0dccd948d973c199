"""Redundant copies: which go, and which must stay."""

import pytest
import torch

from npugx_cache.backend.lowering import lower
from npugx_cache.backend.passes.copies import remove_copies

aten = torch.ops.aten


def removed(function, *inputs, **options):
    graph = lower(function, inputs, None)
    count = remove_copies(graph.graph, **options)
    graph.recompile()
    graph.graph.lint()
    left = [n.target for n in graph.graph.nodes if n.op == "call_function"]
    return count, left, graph


def test_before_and_after():
    def function(x):
        copy = aten.clone.default(aten.mul.Tensor(x, 2))
        return aten.add.Tensor(copy, 1)

    count, left, graph = removed(function, torch.ones(3))
    assert (count, left) == (1, [aten.mul.Tensor, aten.add.Tensor])
    torch.testing.assert_close(graph(torch.ones(3)), torch.full((3,), 3.0))


@pytest.mark.parametrize(
    "copy",
    [
        lambda x: aten.clone.default(x),
        lambda x: aten._to_copy.default(x, dtype=torch.float32),
        lambda x: aten.pow.Tensor_Scalar(x, 1),
        lambda x: aten.repeat.default(x, [1, 1]),
        lambda x: aten.constant_pad_nd.default(x, [0, 0, 0, 0]),
        lambda x: aten.cat.default([x]),
        lambda x: aten.cat.default([aten.clone.default(x)]),
    ],
)
def test_each_kind_of_copy_goes(copy):
    _, left, _ = removed(lambda x: copy(x).sin(), torch.ones(2, 3))
    assert left == [aten.sin.default]


def test_rounding_of_integers_goes():
    _, left, _ = removed(lambda x: aten.ceil.default(x) + 1, torch.ones(3, dtype=torch.int64))
    assert left == [aten.add.Tensor]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: aten.pow.Tensor_Scalar(x, 2).sin(),
        lambda x: aten.repeat.default(x, [1, 1, 1]).sin(),
        lambda x: aten._to_copy.default(x, dtype=torch.float64).sin(),
        lambda x: aten.clone.default(x.t(), memory_format=torch.contiguous_format).sin(),
        lambda x: aten.ceil.default(x).sin(),
        lambda x: aten.clone.default(x.expand(4, 2, 3)).sin(),
    ],
)
def test_what_changes_values_sizes_types_or_strides_stays(function):
    assert removed(function, torch.ones(2, 3))[0] == 0


def test_a_copy_that_is_returned_stays_a_copy_of_the_input():
    assert removed(lambda x: x.clone(), torch.ones(3))[0] == 0


def test_a_copy_of_an_intermediate_may_be_returned_in_its_place():
    count, left, _ = removed(lambda x: (x * 2).clone(), torch.ones(3))
    assert (count, left) == (1, [aten.mul.Tensor])


def test_two_returned_values_do_not_become_one():
    def function(x):
        y = x * 2
        return y, y.clone()

    assert removed(function, torch.ones(3))[0] == 0


def test_of_two_returned_copies_of_one_value_one_stays():
    def function(x):
        y = x + 1
        return y.clone(), y.clone()

    count, _, graph = removed(function, torch.ones(3))
    assert count == 1
    first, second = graph(torch.ones(3))
    assert first.data_ptr() != second.data_ptr()


def test_a_part_of_a_buffer_is_not_returned_in_the_place_of_its_copy():
    # The caller would keep the whole buffer alive, and see it as the storage of a small tensor.
    assert removed(lambda x: (x * 2)[:2].clone(), torch.ones(3))[0] == 0


def test_a_copy_from_before_a_write_stays():
    def function(x):
        before = x.clone()
        x.add_(1)
        return before * 2

    assert removed(function, torch.ones(3))[0] == 0


def test_a_copy_from_before_a_write_to_another_input_stays():
    # The two inputs may overlap: no guard says that they don't.
    def function(x, y):
        before = x.clone()
        y.add_(1)
        return before * 2

    assert removed(function, torch.ones(3), torch.ones(3))[0] == 0
    assert removed(function, torch.ones(3), torch.ones(3), distinct_inputs=True)[0] == 1


def test_a_copy_that_is_written_to_stays_while_its_source_is_needed():
    def function(x):
        y = x * 2
        copy = y.clone()
        copy.add_(1)
        return copy.sum() + y.sum()

    assert removed(function, torch.ones(3))[0] == 0


def test_a_copy_stays_if_the_call_that_writes_it_reads_another_view_of_the_source():
    def function(x):
        y = x * 2
        copy = y.clone()
        copy.add_(y.t())
        return copy.sum()

    assert removed(function, torch.ones(3, 3))[0] == 0


def test_a_copy_that_is_written_to_goes_when_its_source_is_not_needed_any_more():
    def function(x):
        y = x * 2
        copy = y.clone()
        copy.add_(1)
        return copy.sum()

    count, _, graph = removed(function, torch.ones(3))
    assert count == 1
    assert graph(torch.ones(3)).item() == 9


def test_a_copy_of_the_input_that_is_written_to_stays():
    def function(x):
        copy = x.clone()
        copy.add_(1)
        return copy.sum()

    assert removed(function, torch.ones(3))[0] == 0


def test_nothing_goes_next_to_an_op_that_moves_a_value():
    def function(x):
        y = x.clone().sin()
        x.t_()
        return y

    assert removed(function, torch.ones(2, 3))[0] == 0
