"""Concatenations whose parts are computed in place; and those that must stay."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npugx_cache.backend.lowering import lower
from npugx_cache.backend.passes.cat import remove_cats

aten = torch.ops.aten


def rewritten(function, *inputs):
    graph = lower(function, inputs, None)
    count = remove_cats(graph.graph)
    graph.recompile()
    graph.graph.lint()
    return count, [n.target for n in graph.graph.nodes if n.op == "call_function"], graph


def two_products(x, y):
    return torch.cat([x @ y, (y @ x).sin()])


def test_before_and_after():
    x, y = torch.randn(3, 3), torch.randn(3, 3)
    count, left, graph = rewritten(two_products, x, y)
    assert count == 1
    assert left == [
        aten.empty.memory_format,
        aten.slice.Tensor,
        aten.slice.Tensor,
        aten.mm.out,
        aten.mm.default,
        aten.sin.out,
    ]
    torch.testing.assert_close(graph(x, y), two_products(x, y), rtol=0, atol=0)


def test_symbolic_sizes_are_computed_from_the_inputs():
    def function(x, y):
        return torch.cat([x.sin(), y * 2, x + 1])

    graph = make_fx(function, tracing_mode="symbolic")(torch.ones(4, 3), torch.ones(5, 3))
    assert remove_cats(graph.graph) == 1
    graph.recompile()
    for n, m in ((4, 5), (7, 2), (2, 9)):
        x, y = torch.randn(n, 3), torch.randn(m, 3)
        torch.testing.assert_close(graph(x, y), function(x, y), rtol=0, atol=0)


def test_a_part_may_have_other_users_and_be_written_to_before():
    def function(x):
        a, b = x * 2, x.sin()
        b.add_(1)
        c = torch.cat([a, b])
        return c, (a + b).sum()

    count, _, graph = rewritten(function, torch.ones(2, 3))
    assert count == 1
    x = torch.randn(2, 3)
    torch.testing.assert_close(graph(x), function(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat([x * 2, (x * 3).double()]).float(),  # another type: cat promotes
        lambda x: (a := x * 2, torch.cat([a, x * 3])),  # a part is returned too
        lambda x: (a := x * 2, torch.cat([a, x * 3]).sum(), a.view(-1))[1:],  # a view of it is
        lambda x: (a := x * 2, torch.cat([a, a]))[1],  # one part twice
        lambda x: torch.cat([x, x * 2]),  # a part is an input
        lambda x: torch.cat([(x * 2)[:1], x * 3]),  # a part is a view
        lambda x: torch.cat([x * 2, x * 3], dim=1),  # not the first dimension
        lambda x: torch.cat([x * 2, x * 3], dim=-1),
        lambda x: torch.cat([(x.t() * 2), x * 3]),  # other strides
        lambda x: (a := x * 2, c := torch.cat([a, x * 3]), c.add_(1), c + a.sum())[-1],
        lambda x: (a := x * 2, c := torch.cat([a, x * 3]), a.add_(1), c)[-1],
        lambda x: torch.cat([x.argmax(0)[None], x.sum(0)[None].long()]),  # no out form, a view
        lambda x: torch.cat([torch.zeros(0), x.sum(0)]),  # sizes that cat alone accepts
    ],
)
def test_what_would_show_or_has_no_out_form_stays(function):
    x = torch.randn(3, 3)
    count, _, graph = rewritten(function, torch.ones(3, 3))
    assert count == 0
    torch.testing.assert_close(graph(x), function(x), rtol=0, atol=0)


def test_a_part_goes_into_one_concatenation_only():
    def function(x):
        a, b, c = x * 2, x * 3, x * 4
        return torch.cat([a, b]), torch.cat([b, c])

    count, _, graph = rewritten(function, torch.ones(2, 3))
    assert count == 1
    x = torch.randn(2, 3)
    torch.testing.assert_close(graph(x), function(x), rtol=0, atol=0)


def test_a_part_with_no_rows_is_fine():
    def function(x):
        return torch.cat([x[:0] * 2, x * 3])

    count, _, graph = rewritten(function, torch.ones(2, 3))
    assert count == 1
    torch.testing.assert_close(graph(torch.ones(2, 3)), function(torch.ones(2, 3)))
