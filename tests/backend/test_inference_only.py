"""`torch.compile(backend="npugx")` with gradients on: results as eager's, and no backward."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{what}")
    for what in (
        "The .grad attribute of a Tensor that is not a leaf",
        ".*torch.jit.script",
        ".*should not be instantiated",
    )
]
SENTENCE = "compiled for inference, without a backward graph"


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("NPUGX_CACHE_DIR", str(tmp_path))  # not the user's own
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch.set_grad_enabled(True)
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def optimised(caplog):
    yield
    said = [each.getMessage() for each in caplog.get_records("call")]
    assert [text for text in said if "without optimisation" in text] == []


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen.add_(1)
        return x + self.norm(self.linear(x)), self.linear.weight, self.linear.weight.t()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


WEIGHT = nn.Parameter(torch.rand(4, 4))
LAYER = Layer()
FROZEN = Layer().requires_grad_(requires_grad=False)
TRANSFORMER = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)


def no_grad_block(x):
    with torch.no_grad():
        y = x @ WEIGHT
    return y, y * WEIGHT


def grad_block(x):
    with torch.no_grad():
        with torch.enable_grad():
            y = x @ WEIGHT
        z = y * 2
    return y, z


@torch.no_grad()
def decorated(x):
    return x @ WEIGHT


def left_off(x):
    y = x @ WEIGHT
    torch.set_grad_enabled(False)
    return y, y * 2


def written(x, cache):
    cache.mul_(x @ WEIGHT)
    return x + 1


def written_through_a_view(x, cache):
    cache[0].add_(WEIGHT[0])
    return cache.view(-1), cache


def written_without_grad(x, cache):
    cache.add_(x)
    return cache * 2


def written_parameter(x):
    with torch.no_grad():
        WEIGHT.clamp_(0, 1)
    return x * 2


def constant_of_a_gradient(x):
    def inner(x):
        with torch.no_grad():
            y = x**2
        return (x * y).sum()

    return torch.func.grad(inner)(x)


def breaking(x):
    y = x @ WEIGHT
    torch._dynamo.graph_break()
    return y.relu(), x * 2


def branches(x):
    return torch.cond(x.sum() > 0, lambda x: x @ WEIGHT, lambda x: x - WEIGHT, (x,))


def chunks(x):
    left, right = (x @ WEIGHT).chunk(2)
    return left, right, left


CASES = {
    "product": lambda x: x @ WEIGHT,
    "detached": lambda x: (x @ WEIGHT).detach(),
    "detached in part": lambda x: ((x @ WEIGHT).detach(), x @ WEIGHT),
    "integers": lambda x: ((x @ WEIGHT).argmax(-1), (x @ WEIGHT).long()),
    "comparison": lambda x: x @ WEIGHT > 0,
    "without the parameter": lambda x: x * 2,
    "sorted": lambda x: (x @ WEIGHT).sort(),
    "results that are inputs": lambda x: (x, WEIGHT, x.contiguous(), x.to(torch.float32)),
    "views of inputs": lambda x: (x.view(-1), WEIGHT.t(), x[0], x.detach()),
    "views of a result": lambda x: (y := x @ WEIGHT, y.t(), y.detach()),
    "the same result twice": lambda x: (y := x @ WEIGHT, y),
    "nested": lambda x: {"a": [x @ WEIGHT, None, 3], "b": (x.size(0), x.cos())},
    "complex": lambda x: torch.view_as_complex((x @ WEIGHT).view(-1, 2)).conj(),
    "dtype": lambda x: (x @ WEIGHT).to(torch.bfloat16),
    "item of a constant": lambda x: x * torch.tensor([1.0, 2, 3, 4]),
    "new leaf": lambda x: (torch.ones(3), torch.zeros_like(x)),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], WEIGHT[None], WEIGHT[None]),
    "function of autograd": lambda x: Doubled.apply(x) * WEIGHT,
    "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(
        lambda x: (x @ WEIGHT).sin(), x, use_reentrant=False
    ),
    "gradient": lambda x: torch.func.grad(lambda x: ((x @ WEIGHT) ** 2).sum())(x),
    "jvp": lambda x: torch.func.jvp(lambda x: (x @ WEIGHT).sin(), (x,), (torch.ones_like(x),)),
    "vmap": lambda x: torch.vmap(lambda row: row @ WEIGHT)(x),
    "module": lambda x: LAYER(x),
    "frozen module": lambda x: FROZEN(x),
    "transformer": lambda x: TRANSFORMER(x[None]),
    "autocast": lambda x: autocast(x),
    "no_grad block": no_grad_block,
    "enable_grad block": grad_block,
    "no_grad function": decorated,
    "grad mode left off": left_off,
    "written parameter": written_parameter,
    "constant of a gradient": constant_of_a_gradient,
    "graph break": breaking,
    "branches": branches,
    "chunks": chunks,
    "written": written,
    "written through a view": written_through_a_view,
    "written without grad": written_without_grad,
}
WRITTEN = (written, written_through_a_view, written_without_grad)


def autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return x @ WEIGHT


def leaves(value):
    return torch.utils._pytree.tree_leaves(value)


def called(function, inputs, *, enabled):
    """The results, the inputs after the call, and the grad mode after it."""
    inputs = [x.clone() if x.grad_fn else x.detach().clone().requires_grad_(x.requires_grad)
              for x in inputs]  # fmt: skip
    with torch.set_grad_enabled(enabled):
        results = function(*inputs)
        return [*leaves(results), *inputs], torch.is_grad_enabled()


QUICK = {"product", "integers", "no_grad block", "written", "results that are inputs"}


@pytest.mark.parametrize(
    ("name", "enabled"),
    [
        pytest.param(name, enabled, marks=[] if enabled and name in QUICK else pytest.mark.thorough)
        for name in CASES
        for enabled in (True, False)
    ],
)
def test_results_need_a_gradient_where_eagers_do(name, enabled):
    function = CASES[name]
    compiled = torch.compile(function, backend="npugx")
    for needs in (False, True):
        inputs = [torch.rand(4, 4, requires_grad=needs)]
        if function in WRITTEN:
            inputs.append(torch.rand(4, 4))
        kept = copy.deepcopy([each.state_dict() for each in (LAYER, FROZEN)])
        want, mode = called(function, inputs, enabled=enabled)
        for module, state in zip((LAYER, FROZEN), kept, strict=True):
            module.load_state_dict(state)
        got, left = called(compiled, inputs, enabled=enabled)
        assert left == mode
        torch.testing.assert_close(
            *([v.detach() if isinstance(v, torch.Tensor) else v for v in s] for s in (got, want))
        )
        tensors = [(g, w) for g, w in zip(got, want, strict=True) if isinstance(w, torch.Tensor)]
        assert [g.requires_grad for g, _ in tensors] == [w.requires_grad for _, w in tensors]
        if enabled:
            assert [g.is_leaf for g, _ in tensors] == [w.is_leaf for _, w in tensors]


@pytest.mark.parametrize(
    "name",
    [
        "product",
        "written",
        *(
            pytest.param(n, marks=pytest.mark.thorough)
            for n in ("views of inputs", "module", "graph break")
        ),
    ],
)
def test_a_backward_says_what_is_not_there(name):
    function = CASES[name]
    inputs = [torch.rand(4, 4), torch.rand(4, 4)][: 1 + (function in WRITTEN)]
    results = torch.compile(function, backend="npugx")(*inputs)
    asked = [r for r in (*leaves(results), *inputs) if r.requires_grad and not r.is_leaf]
    assert asked
    for result in asked:
        with pytest.raises(RuntimeError, match=SENTENCE):
            (result.sum() * 2).backward()
    assert WEIGHT.grad is None


def test_a_head_that_is_trained_outside_raises_and_its_own_gradient_is_right():
    head = nn.Linear(4, 1)
    features = torch.compile(LAYER, backend="npugx")(torch.rand(2, 4))[0]
    loss = head(features).sum()
    (grad,) = torch.autograd.grad(loss, head.weight, retain_graph=True)
    torch.testing.assert_close(grad[0], features.detach().sum(0))
    with pytest.raises(RuntimeError, match=SENTENCE):
        loss.backward()


def test_numpy_refuses_as_eager_does():
    result = torch.compile(CASES["product"], backend="npugx")(torch.rand(4, 4))
    with pytest.raises(RuntimeError, match="requires grad"):
        result.numpy()
    assert result.detach().numpy().shape == (4, 4)


def test_views_share_the_memory_of_inputs_and_inputs_are_passed_on():
    x = torch.rand(4, 4, requires_grad=True)
    flat, transposed, row, detached = torch.compile(CASES["views of inputs"], backend="npugx")(x)
    assert flat.data_ptr() == row.data_ptr() == detached.data_ptr() == x.data_ptr()
    assert transposed.data_ptr() == WEIGHT.data_ptr()
    passed = torch.compile(CASES["results that are inputs"], backend="npugx")(x)
    assert all(one is other for one, other in zip(passed, (x, WEIGHT, x, x), strict=True))


def test_results_may_be_changed_in_place():
    result = torch.compile(CASES["product"], backend="npugx")(torch.ones(4, 4))
    want = (torch.ones(4, 4) @ WEIGHT).detach()
    result.mul_(2).add_(1)[0] = 7
    want.mul_(2).add_(1)[0] = 7
    torch.testing.assert_close(result.detach(), want)
    assert result.requires_grad


def test_an_input_that_is_not_written_keeps_its_gradient():
    x = torch.rand(4, 4, requires_grad=True)
    y, z = x * 2, (x * 3)[0]
    torch.compile(lambda y, z: y.sum() + z @ WEIGHT, backend="npugx")(y, z)
    (y.sum() + z.sum()).backward()
    torch.testing.assert_close(x.grad, torch.full((4, 4), 2.0).index_fill_(0, torch.tensor(0), 5.0))


def test_a_gradient_that_was_there_before_a_write_is_not_handed_on():
    x = torch.rand(4, 4, requires_grad=True)
    y = x * 2
    torch.compile(written, backend="npugx")(torch.rand(4, 4), y)
    with pytest.raises(RuntimeError, match=SENTENCE):
        y.sum().backward()


@pytest.mark.thorough
def test_a_cache_is_written_at_each_step_without_no_grad():
    def step(x, cache, at):
        cache.index_copy_(0, at, x @ WEIGHT)
        return cache @ WEIGHT

    caches, results = [torch.zeros(6, 4) for _ in range(2)], []
    for cache, run in zip(caches, (step, torch.compile(step, backend="npugx")), strict=True):
        for at in range(4):
            results.append(run(torch.full((1, 4), float(at)), cache, torch.tensor([at])))
    for want, got in zip(results[:4], results[4:], strict=True):
        torch.testing.assert_close(got, want)
        assert got.requires_grad
    assert [cache.requires_grad for cache in caches] == [True, True]


@pytest.mark.thorough
@pytest.mark.parametrize("dynamic", [True, None])
def test_sizes_may_change(dynamic):
    compiled = torch.compile(LAYER.linear, backend="npugx", dynamic=dynamic, fullgraph=True)
    for rows in (2, 3, 5, 1):
        x = torch.rand(rows, 4)
        got, want = compiled(x), LAYER.linear(x)
        torch.testing.assert_close(got, want)
        assert got.requires_grad


@pytest.mark.thorough
def test_both_grad_modes_take_turns():
    compiled = torch.compile(LAYER.linear, backend="npugx")
    x = torch.rand(2, 4)
    for enabled in (True, False, True, False):
        with torch.set_grad_enabled(enabled):
            assert compiled(x).requires_grad == enabled
    with torch.inference_mode():
        assert not compiled(x).requires_grad


def test_no_backward_graph_is_recorded():
    got = torch.compile(lambda x: (x @ WEIGHT).exp().sin(), backend="npugx")(torch.rand(4, 4))
    assert [each.next_functions for each, _ in got.grad_fn.next_functions if each] == [()]


def test_a_view_of_a_parameter_is_written_under_no_grad():
    def clear(row):
        with torch.no_grad():
            row.zero_()
        return row + 1

    weight = nn.Parameter(torch.rand(2, 3))
    row = weight[0]
    assert torch.compile(clear, backend="npugx")(row).requires_grad
    assert weight[0].sum() == 0 < weight[1].sum()
    row.sum().backward()
    torch.testing.assert_close(weight.grad, torch.tensor([[1.0] * 3, [0.0] * 3]))


@pytest.mark.thorough
def test_a_graph_with_random_numbers_runs_for_inference_too():
    results = torch.compile(lambda x: (F.dropout(x @ WEIGHT), x), backend="npugx")(torch.rand(4, 4))
    assert [result.requires_grad for result in results] == [True, False]
    with pytest.raises(RuntimeError, match=SENTENCE):
        results[0].sum().backward()
