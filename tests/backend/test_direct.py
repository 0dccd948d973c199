"""The C function of an operator asks torch for that very operator with the very same arguments."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from npugx_cache.private.direct import DIRECT, call_of

A, B, C = torch.rand(2, 3), torch.rand(2, 3), torch.rand(3, 2)
BATCH, INDEX = torch.rand(2, 3, 3), torch.tensor([0, 1])
QKV = (torch.rand(1, 1, 4, 8),) * 3

UNARY = [
    "abs",
    "cos",
    "exp",
    "neg",
    "reciprocal",
    "relu",
    "rsqrt",
    "sigmoid",
    "sin",
    "sqrt",
    "tanh",
    "gelu",
    "silu",
]
CALLS = [
    *((f"{name}.default", (A,), {}) for name in UNARY),
    *((f"{name}_.default", (A,), {}) for name in UNARY if f"{name}_.default" in DIRECT),
    *((f"{name}.default", (A,), {"approximate": "tanh"}) for name in ("gelu", "gelu_")),
    *(
        (f"{name}.Tensor", (a, b), {})
        for name in ("add", "sub", "mul", "div")
        for a, b in ((A, B), (A, 2), (A, 1e-6), (A, True), (2.0, A), (A, 1j))
    ),
    *((f"{name}_.Tensor", (A, b), {}) for name in ("add", "sub", "mul", "div") for b in (B, 2.5)),
    *((name, (A, 3), {"alpha": 2}) for name in ("add.Tensor", "sub.Tensor", "add_.Tensor")),
    ("_softmax.default", (A, -1, False), {}),
    ("mm.default", (A, C), {}),
    ("addmm.default", (A[:, :2], A, C), {}),
    ("addmm.default", (A[:, :2], A, C), {"beta": 2, "alpha": 0.5}),
    ("bmm.default", (BATCH, BATCH), {}),
    ("baddbmm.default", (BATCH, BATCH, BATCH), {"beta": 0}),
    ("cat.default", ([A, B],), {}),
    ("cat.default", ([A, B], -1), {}),
    ("clone.default", (A,), {}),
    ("clone.default", (A,), {"memory_format": torch.contiguous_format}),
    ("copy_.default", (A, B), {}),
    ("copy_.default", (A, B, True), {}),
    ("embedding.default", (A, INDEX), {}),
    ("embedding.default", (A, INDEX, 1, False, False), {}),
    ("expand.default", (A, [2, 2, 3]), {}),
    ("expand.default", (A, (-1, 3)), {"implicit": True}),
    ("index_select.default", (A, 0, INDEX), {}),
    ("index_copy_.default", (A, 0, INDEX, B), {}),
    *(
        (name, (A, *rest), kwargs)
        for name in ("mean.dim", "sum.dim_IntList")
        for rest, kwargs in (
            (([-1],), {}),
            (([0, 1], True), {}),
            ((None,), {"dtype": torch.float64}),
            (([0], False), {"dtype": None}),
        )
    ),
    ("native_group_norm.default", (torch.rand(2, 4, 3), None, None, 2, 4, 3, 2, 1e-5), {}),
    ("native_layer_norm.default", (A, [3], None, None, 1e-5), {}),
    ("native_layer_norm.default", (A, [3], A[0], B[0], 1e-5), {}),
    ("permute.default", (A, [1, 0]), {}),
    ("pow.Tensor_Scalar", (A, 2), {}),
    ("pow.Tensor_Scalar", (A, 0.5), {}),
    ("select.int", (A, 0, -1), {}),
    ("squeeze.dim", (A, 0), {}),
    ("t.default", (A,), {}),
    ("transpose.int", (A, 0, -1), {}),
    ("unsqueeze.default", (A, 1), {}),
    ("view.default", (A, [3, -1]), {}),
    ("view.default", (A[0, 0], []), {}),
    ("view.default", (A, (6,)), {}),
    ("_scaled_dot_product_flash_attention_for_cpu.default", QKV, {}),
    ("_scaled_dot_product_flash_attention_for_cpu.default", (*QKV, 0.0, True), {"scale": 0.125}),
    (
        "_scaled_dot_product_flash_attention_for_cpu.default",
        QKV,
        {"attn_mask": torch.zeros(4, 4), "scale": 0.125},
    ),
    ("_scaled_dot_product_flash_attention.default", (*QKV, 0.0, False, False), {"scale": 0.5}),
    ("_scaled_dot_product_efficient_attention.default", (*QKV, None, False), {"scale": 0.5}),
]


class Stop(Exception):
    pass


class Recorder(TorchDispatchMode):
    """Takes down the first operator that torch is asked for, and runs none."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen = func, _plain(args), _plain(kwargs or {})
        raise Stop


def _plain(value):
    """Arguments in a form that compares; the types of numbers count."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return id(value) if isinstance(value, torch.Tensor) else (type(value), value)


def asked(call, args, kwargs):
    with torch.no_grad(), Recorder() as recorder, pytest.raises(Stop):
        call(*args, **kwargs)
    return recorder.seen


def overload(name):
    packet, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), which)


@pytest.mark.parametrize(
    ("name", "args", "kwargs"), CALLS, ids=[f"{i} {name}" for i, (name, *_) in enumerate(CALLS)]
)
def test_the_same_is_asked(name, args, kwargs):
    target = overload(name)
    assert call_of(target) is DIRECT[name]
    assert asked(DIRECT[name], args, kwargs) == asked(target, args, kwargs)
    assert asked(DIRECT[name], args, kwargs)[0] is target


class Parts(TorchDispatchMode):
    """Takes down the operators that run, because torch takes a composite one apart."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("args", [(A, B), (A, B, torch.rand(2)), (BATCH, BATCH[0])])
def test_linear_has_the_same_parts(args):
    results, seen = [], []
    for call in (DIRECT["linear.default"], torch.ops.aten.linear.default):
        with torch.no_grad(), Parts() as parts:
            results.append(call(*args))
        seen.append(parts.seen)
    assert torch.equal(*results)
    assert seen[0] == seen[1] != []


def test_each_has_a_call():
    assert {*(name for name, _, _ in CALLS), "linear.default"} == set(DIRECT)


@pytest.mark.parametrize("target", [torch.ops.aten.arange.start, torch.ops.aten.slice.Tensor])
def test_others_are_called_without_a_function_of_python(target):
    assert call_of(target) is target._op


def test_what_is_no_operator_stays():
    assert call_of(len) is len
    assert call_of(torch.ops.aten.add) is torch.ops.aten.add


def test_a_device_as_a_context_changes_no_factory():
    call = call_of(torch.ops.aten.arange.default)
    with torch.device("meta"):
        assert call(3, device="cpu", pin_memory=False).device.type == "cpu"
