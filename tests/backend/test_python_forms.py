"""A trace calls what eager calls, also where torch has a form in Python of an operator for traces.

What eager calls is seen by a mode of ours, under which torch's Python dispatcher is not asked.
"""

import itertools

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from npugx_cache.backend import lowering
from npugx_cache.private import python_forms

GIVEN = torch.Generator().manual_seed(0)


class Calls(TorchDispatchMode):
    """The operators that are called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.seen.append(operator)
        return operator(*args, **(kwargs or {}))


def computing(operators):
    """The names of what computes: what moves elements has other names in a trace (`clone`)."""
    names = (str(each).split(".")[1] for each in operators if hasattr(each, "_schema"))
    return [each for each in names if each in COMPUTES or "upsample" in each]


COMPUTES = ("mm", "bmm", "mv", "dot", "addmm", "mkldnn_rnn_layer", "tanh", "sigmoid")


def compare(function, *inputs, dynamic=False):
    """Compare a trace with eager: results, strides, operators; returns the operators traced.

    With `dynamic`, torch.compile calls our lowering with symbolic sizes.
    """
    graphs = []

    def backend(graph, given):
        graphs.append(lowering.lower(graph, given, None))
        return graphs[-1].forward

    with torch.no_grad():
        with Calls() as calls:
            wanted = tree_leaves(function(*inputs))
        if dynamic:
            torch._dynamo.reset()
            # torch 2.10 does not trace a function of torch's that is compiled by itself.
            call = torch.compile(lambda *given: function(*given), backend=backend, dynamic=True)
            results = call(*inputs)
        else:
            graphs.append(lowering.lower(function, inputs, None))
            results = graphs[0](*inputs)
    nodes = graphs[0].graph.nodes
    given = [n.meta["val"] for n in nodes if n.op == "placeholder"]
    assert dynamic == any(isinstance(each, torch.SymInt) for each in given)
    for result, each in zip(tree_leaves(results), wanted, strict=True):
        assert torch.equal(result, each)
        assert (result.dtype, result.stride()) == (each.dtype, each.stride())
    operators = [n.target for n in nodes if n.op == "call_function"]
    assert computing(operators) == computing(calls.seen)
    return operators


def randn(*sizes, dtype=torch.float32):
    return torch.randn(*sizes, generator=GIVEN).to(dtype)


DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
DYNAMIC = pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic"])
MODES = [
    *(("nearest", size) for size in ((5,), (5, 4), (3, 5, 4))),
    *(("nearest-exact", size) for size in ((5,), (5, 4), (3, 5, 4))),
    *(("linear", (5,)), ("bilinear", (5, 4)), ("bicubic", (5, 4)), ("trilinear", (3, 5, 4))),
]


@pytest.mark.parametrize(("mode", "size"), MODES, ids=str)
@pytest.mark.parametrize(
    "factor", [1.7, None, *(pytest.param(each, marks=pytest.mark.thorough) for each in (2.0, 0.6))]
)
def test_an_image_is_resized_by_the_operator_that_eager_calls(mode, size, factor):
    def resize(image):
        to = [2 * each for each in image.shape[2:]] if factor is None else None
        return F.interpolate(image, to, factor, mode)

    for dtype in (torch.float32, torch.bfloat16):
        image = randn(2, 3, *size, dtype=dtype)
        [operator] = compare(resize, image)
        assert "upsample" in str(operator)
        if len(size) == 2:
            compare(resize, image.contiguous(memory_format=torch.channels_last))


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("factor", [2.0, 1.7, None])
def test_an_image_of_any_size_is_as_well(mode, factor):
    def resize(image):
        to = [2 * each for each in image.shape[2:]] if factor is None else None
        return F.interpolate(image, to, factor, mode)

    compare(resize, randn(2, 3, 5, 4), dynamic=True)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@DYNAMIC
def test_an_image_is_resized_without_aliasing(mode, dynamic):
    def resize(image):
        return F.interpolate(image, scale_factor=1.7, mode=mode, antialias=True)

    compare(resize, randn(2, 3, 5, 4), dynamic=dynamic)


def rows(tensor, layout):
    """The same elements in another layout; None where the tensor can't have this one."""
    kind = tensor.dim()
    if layout == "dense":
        return tensor
    if layout == "transposed":
        return tensor.mT.contiguous().mT if kind > 1 else None
    if layout == "expanded":
        return tensor[:1].expand(tensor.shape) if kind > 2 else None
    if layout == "permuted":
        return tensor.transpose(0, 1).contiguous().transpose(0, 1) if kind > 2 else None
    at = int(layout.removeprefix("gaps in "))
    if at >= kind:
        return None
    wide = torch.stack([tensor, tensor], at + 1).flatten(at, at + 1)
    return wide[(slice(None),) * at + (slice(None, None, 2),)]


LAYOUTS = ("dense", "transposed", "expanded", "permuted", "gaps in 0", "gaps in 1", "gaps in 2")
LEFT = ((3,), (4, 3), (1, 3), (2, 4, 3), (2, 1, 3), (1, 4, 3), (2, 2, 4, 3), (0, 4, 3))
RIGHT = ((3,), (3, 5), (3, 1), (2, 3, 5), (2, 2, 3, 5))


FITTING = [
    pytest.param(left, right, marks=[pytest.mark.thorough] if len(right) > 3 else [])
    for left, right in itertools.product(LEFT, RIGHT)
    if left[0] or len(right) < 3  # nothing is broadcast to no rows
]


@pytest.mark.parametrize(("left", "right"), FITTING, ids=str)
def test_matmul_makes_the_products_that_eager_makes(left, right):
    for one, two in itertools.product(LAYOUTS, ("dense", "transposed", "gaps in 1")):
        x, w = rows(randn(*left), one), rows(randn(*right), two)
        if x is not None and w is not None:
            compare(torch.matmul, x, w)
            compare(torch.matmul, x, torch.nn.Parameter(w))


@pytest.mark.parametrize(
    ("sizes", "layout"),
    [
        *(((4, 6, 3), layout) for layout in ("dense", "gaps in 1")),
        *(
            pytest.param((2, 3, 4, 3), layout, marks=pytest.mark.thorough, id=layout)
            for layout in LAYOUTS
        ),
    ],
    ids=str,
)
def test_matmul_of_sizes_that_vary_does_too(sizes, layout):
    x = rows(randn(*sizes), layout)
    for weight in (randn(3, 5), torch.nn.Parameter(randn(3, 5)), randn(3)):
        compare(lambda x, w: x @ w, x, weight, dynamic=True)
    compare(lambda x, w: F.linear(x[:, ::2], w), x, randn(5, 3), dynamic=True)


@pytest.mark.parametrize("kind", ["GRU", "RNN", "LSTM"])
@pytest.mark.thorough
@DTYPES
def test_a_recurrent_layer_is_taken_apart_as_in_eager(kind, dtype):
    for both in (False, True):
        layer = getattr(torch.nn, kind)(6, 8, 2, batch_first=True, bidirectional=both)
        compare(layer.to(dtype).eval(), randn(3, 5, 6, dtype=dtype))


@DYNAMIC
def test_other_operators_are_called_as_in_eager(dynamic):
    x, classes = randn(4, 5), torch.arange(4)
    compare(F.hardshrink, x, dynamic=dynamic)
    compare(F.softshrink, x, dynamic=dynamic)
    compare(F.multi_margin_loss, x, classes, dynamic=dynamic)
    labels = torch.tensor([[0, 1, -1, 2, 0]] * 4)
    compare(F.multilabel_margin_loss, x, labels, dynamic=dynamic)


def test_each_form_in_python_steps_aside_or_stays_for_a_reason():
    keys = {torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd}
    have = {
        name
        for name in dir(torch.ops.aten)
        for overload in getattr(getattr(torch.ops.aten, name), "overloads", list)()
        if keys & getattr(getattr(torch.ops.aten, name), overload).py_kernels.keys()
    }
    known = {*python_forms.OPERATORS, *python_forms.KEPT}
    assert {"matmul", "upsample_bilinear2d"} <= have
    assert have <= known


def test_a_compile_of_torchs_own_keeps_torchs_forms():
    compare(lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), randn(1, 1, 2, 2))
    seen = []

    def backend(graph, given):
        made = make_fx(graph, tracing_mode="symbolic")(*given)
        seen.extend(str(n.target) for n in made.graph.nodes if n.op == "call_function")
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), backend=backend
    )
    compiled(randn(1, 1, 2, 2))
    assert "aten.arange.default" in seen
