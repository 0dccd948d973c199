"""`linear` is put back where torch would make of it exactly what stands in the graph."""

import pytest
import torch
from torch.nn import functional as F

from npugx_cache.backend import engines, lowering, options
from npugx_cache.backend.passes.linear import restore_linear

aten = torch.ops.aten
WEIGHT, BIAS = torch.randn(5, 3), torch.randn(5)


def rewritten(function, *inputs, run=restore_linear):
    graph = lowering.lower(function, inputs, None)
    count = run(graph.graph)
    graph.graph.lint()
    graph.recompile()
    assert torch.equal(graph(*inputs), function(*inputs))
    return count, [n.target for n in graph.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("bias", [(), (BIAS,)], ids=["", "bias"])
@pytest.mark.parametrize("sizes", [(4, 3), (1, 4, 3), (2, 4, 3), (2, 2, 4, 3)], ids=str)
def test_it_is_one_call_again(sizes, bias):
    assert rewritten(F.linear, torch.randn(sizes), WEIGHT, *bias) == (1, [aten.linear.default])


def test_a_product_that_somebody_wrote_like_it_is_one_too():
    def product(x, w):
        return (x.view(-1, 3) @ w.t()).view(2, 4, 5)

    count, calls = rewritten(product, torch.randn(2, 4, 3), WEIGHT)
    assert (count, calls) == (1, [aten.view.default, aten.linear.default, aten.view.default])


def test_what_others_use_of_it_stays():
    def shares(x, w):
        rows, turned = x.view(8, 3), w.t()
        product = rows @ turned
        return product.view(2, 4, 5) + product.sum() + rows.sum() + turned.sum()

    count, calls = rewritten(shares, torch.randn(2, 4, 3), WEIGHT)
    assert count == 1
    assert calls[:3] == [aten.view.default, aten.t.default, aten.linear.default]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: F.linear(x.transpose(0, 1), w),
        lambda x, w: F.linear(x[:, ::2], w),
        lambda x, w: torch.addmm(BIAS, x[0], w.t(), beta=2),
        lambda x, w: (x.view(8, 3) @ w.t()).view(4, 2, 5),
    ],
    ids=["other rows", "rows with gaps", "a factor", "other sizes"],
)
def test_what_torch_would_not_make_of_it_is_no_linear_of_what_was_given(function):
    _, calls = rewritten(function, torch.randn(2, 4, 3), WEIGHT)
    whole = [each for each in calls if each == aten.linear.default]
    assert not whole or aten.view.default in calls  # then it is one of rows that are flat already


def test_sizes_that_vary_are_no_obstacle_and_get_no_guard():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(3, 5)

        def forward(self, x):
            return self.inner(x)

    reports = []

    def backend(graph, inputs):
        lowered = lowering.lower(graph, inputs, None)
        guards = len(env(inputs).guards)
        reports.append((restore_linear(lowered.graph), len(env(inputs).guards) - guards))
        lowered.recompile()
        return lowered.forward

    def env(inputs):
        return next(each.node.shape_env for each in inputs if isinstance(each, torch.SymInt))

    model = Model().eval()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad():
        for sizes in ((2, 4, 3), (3, 7, 3)):
            x = torch.randn(sizes)
            assert torch.equal(compiled(x), model(x))
    assert reports == [(1, 0)]


def test_its_result_is_written_over_as_that_of_its_product_was():
    def function(x, w):
        return F.silu(F.linear(x, w)) * F.linear(x, w * 2)

    graph = lowering.lower(function, (torch.randn(1, 4, 3), WEIGHT), None)
    engines.load("npugraph_ex").optimise(graph, options.Options())
    calls = [n.target for n in graph.graph.nodes if n.op == "call_function"]
    assert calls.count(aten.linear.default) == 2
    assert calls[-1] == aten.mul_.Tensor
    assert aten.silu_.default in calls


def test_where_it_has_a_kernel_of_its_own_its_parts_stay():
    library = torch.library.Library("aten", "IMPL")
    library.impl("linear", lambda x, w, b=None: x.new_zeros(()), "CPU")
    try:
        graph = lowering.lower(lambda x, w: x @ w.t(), (torch.randn(4, 3), WEIGHT), None)
        assert restore_linear(graph.graph) == 0
    finally:
        library._destroy()
