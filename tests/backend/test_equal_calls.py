"""Equal calls are made once, unless somebody could tell."""

import pytest
import torch

from npugx_cache.backend import lowering
from npugx_cache.backend.passes.equal_calls import merge_equal_calls

aten = torch.ops.aten
LARGE = torch.randn(64, 64)
"""An input, so that results of small tensors may be kept."""


def rewritten(function, *inputs):
    graph = lowering.lower(function, (*inputs, LARGE), None)
    dropped = merge_equal_calls(graph.graph)
    graph.graph.lint()
    graph.recompile()
    mine, eagers = [x.clone() for x in inputs], [x.clone() for x in inputs]
    result, expected = graph(*mine, LARGE), function(*eagers, LARGE)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(mine, eagers, rtol=0, atol=0)
    return dropped, [n.target for n in graph.graph.nodes if n.op == "call_function"]


def dropped(function, *inputs):
    return rewritten(function, *inputs)[0]


def test_a_mask_of_each_layer_is_made_once_and_before_the_layers():
    def layers(x, keep, _):
        for _ in range(3):
            mask = torch.where(keep, 0.0, float("-inf"))
            x = (x + mask).softmax(-1) * 2
        return x

    count, calls = rewritten(layers, torch.randn(4, 4), torch.ones(4, 4, dtype=torch.bool))
    assert count == 6  # each layer's two numbers and its choice, but for the first one's
    assert [calls.count(each) for each in (aten.where.self, aten.scalar_tensor.default)] == [1, 2]
    assert calls[:3].count(aten.where.self) == 1


def test_attention_takes_the_mask_of_the_first_layer():
    def layers(q, keep, _):
        for _ in range(2):
            mask = torch.where(keep, 0.0, float("-inf"))
            q = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        return q

    inputs = torch.randn(1, 2, 4, 8), torch.ones(4, 4, dtype=torch.bool)
    assert rewritten(layers, *inputs)[1].count(aten.where.self) == 1


def test_views_are_made_once():
    assert dropped(lambda x, _: x.t() @ x.t() + x.t(), torch.randn(3, 3)) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x, _: x.sin() + x.cos(),
        lambda x, _: (x + 1) * (x + True),
        lambda x, _: (x * 0.0) / (x * -0.0),
        lambda x, _: x.to(torch.float64).sum() + x.to(torch.float16).sum(),
    ],
    ids=["operators", "a bool", "the sign of zero", "types"],
)
def test_other_calls_stay(function):
    assert dropped(function, torch.ones(3)) == 0


def written_result(x, _):
    y, z = x.sin(), x.sin()
    y.add_(1)
    return y * z


def written_later_copy(x, _):
    y, z = x.sin(), x.sin()
    z.mul_(2)
    return y * z


def written_argument(x, _):
    y = x.sin()
    x.add_(1)
    return y * x.sin()


def written_through_a_view(x, _):
    y = x.sin()
    x[0].add_(1)
    return y * x.sin()


def returned(x, _):
    return x.sin(), x.sin()


def returned_views(x, _):
    return x[0], x[0]


def returned_by_a_view(x, _):
    return x.sin()[0], x.sin().sum()


@pytest.mark.parametrize(
    "function",
    [
        written_result,
        written_later_copy,
        written_argument,
        written_through_a_view,
        returned,
        returned_views,
        returned_by_a_view,
    ],
    ids=lambda function: function.__name__,
)
def test_what_somebody_could_tell_apart_is_made_each_time(function):
    graph = lowering.lower(function, (torch.randn(3), LARGE), None)
    kept = [n.target for n in graph.graph.nodes if n.target == aten.sin.default]
    _, calls = rewritten(function, torch.randn(3))
    assert calls.count(aten.sin.default) == len(kept)
    if function is returned_views:
        assert calls.count(aten.select.int) == 2


def test_views_of_what_is_written_see_the_writes_as_before():
    def function(x, _):
        y = x * 2
        row = y[0]
        first = y.view(-1).sum()
        row.add_(1)
        return first + y.view(-1).sum()

    assert dropped(function, torch.randn(2, 3)) == 1


def test_a_call_does_not_follow_a_view_that_moved_before_a_write():
    """The view may move up, because a view reads nothing; what reads through it may not."""

    def function(x, _):
        y = x * 2
        row = y[0]
        row.add_(1)
        return y.view(-1).sum() + y.view(-1).sum() * y.view(-1).sum()

    assert rewritten(function, torch.randn(2, 3))[1].count(aten.view.default) == 1


def test_random_numbers_are_drawn_each_time():
    graph = lowering.lower(lambda x: torch.rand_like(x) + torch.rand_like(x), (LARGE,), None)
    assert merge_equal_calls(graph.graph) == 0


def test_a_call_that_may_raise_does_not_move_before_a_write_that_the_caller_sees():
    def function(x, table, at, _):
        x.add_(1)
        return table[at] + table[at].sum()

    inputs = torch.zeros(3), torch.arange(4.0), torch.tensor([0, 3])
    assert dropped(function, *inputs) == 0

    def without_a_write(table, at, _):
        return table[at] + table[at].sum()

    assert dropped(without_a_write, *inputs[1:]) == 1


def test_a_mask_moves_before_a_write_to_a_cache():
    def layers(x, cache, keep, _):
        keep = keep.logical_not()
        for at in range(3):
            cache[at].copy_(x)
            x = x + torch.where(keep, 0.0, -1.0) + cache[at]
        return x

    inputs = torch.randn(4), torch.randn(3, 4), torch.ones(4, dtype=torch.bool)
    _, calls = rewritten(layers, *inputs)
    assert calls.count(aten.where.self) == 1


def test_what_would_take_much_memory_is_made_each_time():
    def function(x):
        return (x.sin() + 1) * x.sin()

    for size, count in ((64, 0), (4, 1)):
        graph = lowering.lower(
            lambda x, other: function(x) + other.sum(), (torch.randn(size, size), LARGE), None
        )
        assert merge_equal_calls(graph.graph) == count


def test_sizes_are_asked_once_and_sizes_of_data_are_their_own():
    found = []

    def backend(graph, inputs):
        lowered = lowering.lower(graph, inputs, None)
        before = len(lowered.graph.nodes)
        merge_equal_calls(lowered.graph)
        lowered.graph.lint()
        lowered.recompile()
        found.append((before, [str(n.target) for n in lowered.graph.nodes]))
        return lowered.forward

    def function(x):
        at = x.nonzero().shape[0], x.nonzero().shape[0]
        return x.view(-1, x.shape[0]).sum() + x.new_zeros(x.shape[0]).sum() + at[0] + at[1]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        x = torch.randn(7)
        assert torch.equal(torch.compile(function, backend=backend, dynamic=True)(x), function(x))
    [(_, names)] = found
    assert names.count("aten.nonzero.default") == 2
