"""A Python kernel that somebody gives an operator of torch's is a factor of the key."""

from __future__ import annotations

import contextlib
import gc

import pytest
import torch
from torch.overrides import TorchFunctionMode

from npugx_cache.key import kernels
from npugx_cache.private import dispatcher

pytestmark = pytest.mark.filterwarnings("ignore:Warning only once for all operators")


@contextlib.contextmanager
def registered(operator, function, key):
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl(operator, function, key)
        yield


def ours(x):
    return x * 9


def edited(x):
    return x * 8


def test_without_one_nothing_is_told():
    assert kernels.refresh() == ("", None)


def test_the_code_of_a_kernel_is_told():
    texts = []
    for function in (ours, edited, ours):
        with registered("sinh", function, "CPU"):
            found = kernels.refresh()
            assert found.text.startswith(f"aten::sinh for CPU: {__name__}.{function.__name__} ")
            assert found.obstacle is None  # no trace runs such a kernel
            assert kernels.texts == [found.text]
            texts.append(found.text)
        assert not kernels.is_current()
        assert kernels.refresh().text == ""
        assert kernels.is_current()
    first, other, again = texts
    assert first == again != other


def test_a_kernel_that_runs_while_a_graph_is_traced_is_in_the_way():
    with registered("sinh", ours, "AutogradCPU"):
        obstacle = kernels.refresh().obstacle
    assert obstacle is not None
    place = f"test_kernels.py:{ours.__code__.co_firstlineno}"
    assert obstacle.startswith(
        "aten::sinh has a Python kernel for AutogradCPU, which runs while a graph is traced"
    )
    assert place in obstacle
    assert obstacle.endswith("call a function in the place of the operator")


@pytest.mark.parametrize("key", ["CPU", "AutogradCPU"])
def test_two_kernels_are_told_of_in_the_order_of_their_names(key):
    with registered("tan", ours, "CPU"), registered("sinh", edited, key):
        found = kernels.refresh()
    assert [each.split(" for ")[0] for each in found.text.split("; ")] == [
        "aten::sinh",
        "aten::tan",
    ]
    assert (found.obstacle is None) == (key == "CPU")


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("torch.somewhere", False),  # the version of torch is in the key
        ("torch.library", True),  # which hands calls on, so a user's function is in there
        ("torch._library.custom_ops", True),
        ("somewhere", True),
    ],
)
def test_kernels_of_torchs_own_modules_are_not_told_of(module, told):
    space = {"__name__": module}
    exec("def f(x):\n    return x", space)
    with registered("sinh", space["f"], "CPU"):
        text = kernels.refresh().text
    assert text.startswith(f"aten::sinh for CPU: {module}.f ") is told
    assert bool(text) is told


def test_another_kernel_in_the_place_of_one_is_told_of():
    with registered("sinh", ours, "CPU"):
        before = kernels.refresh().text
    with registered("sinh", edited, "CPU"):  # nobody has asked in between
        assert not kernels.is_current()
        assert f"{__name__}.edited" in kernels.refresh().text != before


def test_what_the_collection_of_garbage_runs_is_not_taken_for_a_kernel():
    ran = []

    def callback(phase, info):
        ran.append(phase)

    library = torch.library.Library("aten", "IMPL", "Meta")
    library.impl("relu", lambda x: x.clone())
    was_on, before = gc.isenabled(), gc.get_threshold()
    gc.callbacks.append(callback)
    gc.set_threshold(1)
    gc.enable()  # a test of the command line leaves it off
    try:
        entries = [dispatcher.entry_of(torch.ops.aten.relu.default, "Meta") for _ in range(20)]
    finally:
        gc.set_threshold(*before)
        if not was_on:
            gc.disable()
        gc.callbacks.remove(callback)
        library._destroy()
    assert ran
    assert {each.code.co_name for each in entries} == {"<lambda>"}


class Doubling(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_a_mode_of_the_users_is_not_taken_for_a_kernel():
    with registered("sinh", ours, "CPU"):
        with Doubling():
            entry = dispatcher.entry_of(torch.ops.aten.sinh.default, "CPU")
            text = kernels.refresh().text
        assert entry.code is ours.__code__
        assert text == kernels.refresh().text


def test_a_kernel_that_falls_through_runs_nothing():
    with registered("sinh", torch.library.fallthrough_kernel, "AutogradCPU"):
        assert kernels.refresh().text == "aten::sinh for AutogradCPU: nothing, it falls through"
