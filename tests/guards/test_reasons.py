"""Reasons of a miss: one text for each cause, in words that name what a user can change."""

import contextlib

import pytest
import torch

from npugx_cache.conditions import torch_state
from npugx_cache.conditions.causes import Failed, reasons, with_advice
from npugx_cache.conditions.data import Kind
from npugx_cache.conditions.kinds import live_state
from npugx_cache.private import runtime


def told(*around):
    before = live_state()
    with contextlib.ExitStack() as stack:
        for each in around:
            stack.enter_context(each)
        return [*torch_state.differences(before, live_state())]


@contextlib.contextmanager
def autocast_on(kind, dtype):
    before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    torch.set_autocast_enabled(kind, True)
    torch.set_autocast_dtype(kind, dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(kind, before[0])
        torch.set_autocast_dtype(kind, before[1])


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("kind", runtime.AUTOCAST_DEVICES)
def test_autocast_is_named_with_its_device_and_dtype(kind):
    was = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
    assert told(autocast_on(kind, torch.float16)) == [
        f"torch.autocast({kind!r}) was off with {was}, is on with float16"
    ]


def test_switches_are_named_as_a_user_asks_for_them():
    assert told(torch.inference_mode()) == ["torch.is_inference_mode_enabled() was False, is True"]
    assert told(torch.no_grad()) == ["torch.is_grad_enabled() was True, is False"]
    assert told(default_dtype(torch.float64)) == [
        "torch.get_default_dtype() was float32, is float64"
    ]


def test_dispatch_keys_alone_are_told_too():
    excluded = torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Meta))
    ((text),) = told(excluded)
    assert text.startswith("global torch state tls_exclude was ")


def dtype_of(path):
    return Failed(Kind.TENSOR, path, f"{path}: dtype was float32, is float64")


def test_a_converted_model_is_one_reason():
    weights = [f"self._modules['{n}']._parameters['weight']" for n in range(5)]
    other = Failed(Kind.EQUALS, "self.eps", "self.eps was 1, is 2")
    converted = f"x: dtype was float32, is float64; the same of {weights[0]} and others"
    assert [*reasons([dtype_of("x"), other, *map(dtype_of, weights)])] == [
        f"{converted}, as after .to() of a model",
        "self.eps was 1, is 2",
    ]
    few = [dtype_of("x"), dtype_of("y")]
    assert [*reasons(few)] == [each.text for each in few]
    inputs = [dtype_of(each) for each in "xyz"]
    assert [*reasons(inputs)] == ["x: dtype was float32, is float64; the same of y and others"]


def test_modes_of_many_modules_are_one_reason_and_other_values_are_not():
    def training(path):
        return Failed(Kind.EQUALS, f"{path}.training", f"{path}.training was False, is True")

    assert [*reasons([training(each) for each in "abc"])] == [
        "a.training was False, is True; the same of b.training and others"
    ]
    others = [Failed(Kind.EQUALS, f"a.{n}", f"a.{n} was 1, is 2") for n in "pqr"]
    assert [*reasons(others)] == [each.text for each in others]


def test_a_variable_of_the_environment_is_told_once():
    told_already = Failed(Kind.EQUALS, "os.environ['MODE']", "os.environ['MODE'] was None, is 'b'")
    mode, other = (
        Failed(
            Kind.NOT_CONTAINS, "os.environ._data", f"no longer true: b'{n}' not in os.environ._data"
        )
        for n in ("MODE", "OTHER_MODE")
    )
    assert [*reasons([told_already, mode])] == [told_already.text]
    assert [*reasons([told_already, mode, other])] == [told_already.text, other.text]
    assert [*reasons([mode])] == [mode.text]


def test_an_edited_function_is_told_once():
    def other_code(path, name):
        text = f"{path} was {name} (code 1a2b), is {name} (code 3c4d)"
        return Failed(Kind.IDENTITY, path, text)

    source = Failed(Kind.FUNCTION, "", "source of lib.f changed at lib.py:3 in f")
    same, other = other_code("globals()['lib'].f", "lib.f"), other_code("lib.g", "lib.g")
    assert [*reasons([source, same, other])] == [source.text, other.text]
    assert [*reasons([same])] == [same.text]


@pytest.mark.parametrize(
    ("texts", "serves"),
    [
        (["x: size was (4, 8), is (5, 8); stride was (8, 1), is (9, 1)"], True),
        (["x: size was (4,), is (5,)", "y: size was (4,), is (5,)"], True),
        (["x: size was (4,), is (5,)", "y: dtype was float32, is float64"], False),
        (["x: dtype was float32, is float64; size was (4,), is (5,)"], False),
        (["x: size was (4,), is (1,)"], False),
        (["x: size was (4, 8), is (4, 8, 1)"], False),
        (["x: stride was (8, 1), is (1, 8)"], False),
        (["y was 1, is 2"], False),
    ],
)
def test_dynamic_sizes_are_advised_where_they_serve(texts, serves):
    advised = with_advice(tuple(texts))
    assert advised[:-1] == tuple(texts[:-1])
    assert advised[-1] == texts[-1] + ("; dynamic=True would serve both" if serves else "")
