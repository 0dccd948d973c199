"""Tensors that hold other tensors: a program takes the tensors that they hold."""

import pytest
import torch
from torch.nn import functional

from npugx_cache.backend import compile_fx, dynamo_backend
from npugx_cache.backend.inner_tensors import parts_of, positions, taken_apart, taking_apart
from npugx_cache.portable import NotPortable


class Scaled(torch.Tensor):
    """Integers and a scale; `data` may be such a tensor itself."""

    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype)

    def __init__(self, data, scale):
        self.inside, self.scale = data, scale

    def __tensor_flatten__(self):
        return ["inside", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, kept, size, stride):
        return cls(inner["inside"], inner["scale"])

    def whole(self):
        inside = self.inside.whole() if isinstance(self.inside, Scaled) else self.inside
        return inside.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.add_.Tensor:
            args[0].scale.add_(args[1])
            return args[0]
        if func is torch.ops.aten.neg.default:
            return Scaled(args[0].inside, -args[0].scale)
        if func is torch.ops.aten.detach.default:
            return Scaled(args[0].inside, args[0].scale)
        plain = [each.whole() if isinstance(each, Scaled) else each for each in args]
        return func(*plain, **(kwargs or {}))


def scaled():
    return Scaled(torch.arange(6).view(2, 3).to(torch.int8), torch.tensor([[0.5], [2.0]]))


def nested():
    return Scaled(scaled(), torch.tensor([[3.0], [4.0]]))


def test_the_parts_are_named_by_paths_and_read_at_each_call():
    value, x = nested(), torch.ones(2)
    parts = [parts_of(x), parts_of(value)]
    assert parts == [(), ("inside.inside", "inside.scale", "scale")]
    given = []
    run = taking_apart(lambda *values: given.append(values), parts)
    run(x, value)
    value.scale = torch.zeros(2, 1)
    run(x, value)
    inner = value.inside
    assert [len(each) for each in given] == [4, 4]
    assert given[0][:3] == (x, inner.inside, inner.scale)
    assert given[1][3] is value.scale
    assert given[0][3] is not value.scale
    assert taken_apart([x, value], parts)[3] is value.scale
    assert positions([1], parts) == (1, 2, 3)
    assert positions([0], parts) == (0,)


def test_a_program_without_such_tensors_is_called_as_it_is():
    assert taking_apart(len, [(), ()]) is len
    assert taking_apart(len, []) is len


def test_what_is_no_tensor_refuses():
    value = scaled()
    value.scale = 3.0
    with pytest.raises(NotPortable, match="holds a float among its tensors"):
        parts_of(value)


class Linear(torch.nn.Module):
    def forward(self, x, weight):
        return functional.linear(x, weight) + 1


@pytest.mark.parametrize("make", [scaled, nested])
def test_a_graph_is_lowered_for_what_they_hold(make):
    graph = torch.fx.symbolic_trace(Linear())
    x, weight = torch.randn(4, 3), make()
    run = compile_fx(graph, [x, weight])
    torch.testing.assert_close(run(x, weight), functional.linear(x, weight) + 1)
    weight.scale = weight.scale * 3
    torch.testing.assert_close(run(x, weight), functional.linear(x, weight) + 1)


@pytest.fixture
def compiled():
    torch.compiler.reset()
    yield lambda function: torch.compile(function, backend=dynamo_backend, fullgraph=True)
    torch.compiler.reset()


@torch.no_grad()
def test_a_write_goes_to_what_they_hold(compiled):
    def f(x, weight):
        weight.add_(1.0)
        return functional.linear(x, weight)

    x, weight, other = torch.randn(4, 3), scaled(), scaled()
    torch.testing.assert_close(compiled(f)(x, weight), f(x, other))
    torch.testing.assert_close(weight.scale, other.scale)
    assert torch.equal(weight.scale, scaled().scale + 1)


@torch.no_grad()
def test_a_graph_that_returns_one_runs_as_it_is(compiled, caplog):
    made = compiled(lambda weight: -weight)(scaled())
    assert torch.equal(made.scale, -scaled().scale)
    assert "a Scaled, which holds other tensors, leaves the graph" in caplog.text
