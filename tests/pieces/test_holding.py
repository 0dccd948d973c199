"""Inputs of a graph that hold other tensors: what the code of their class does is heeded (P1)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough
SCRIPT = Path(__file__).with_name("holding.py")

SOURCE = '''
import torch

FACTOR, UNREAD = 1.5, 1


class Holding(torch.Tensor):
    """Integers, and how many times they count."""

    offset = 0.25
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, ints, times=2.0):
        return torch.Tensor._make_wrapper_subclass(cls, ints.shape, dtype=torch.float32)

    def __init__(self, ints, times=2.0):
        self.ints, self.times = ints, times

    def __tensor_flatten__(self):
        return ["ints"], self.times

    @classmethod
    def __tensor_unflatten__(cls, inner, times, size, stride):
        return cls(inner["ints"], times)

    def whole(self):
        return self.ints.to(torch.float32) * self.times * FACTOR + self.offset

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].ints, args[0].times)
        return func(*(each.whole() if isinstance(each, cls) else each for each in args))


class Traced(Holding):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.mul:
            return func(*(each.whole() if isinstance(each, cls) else each for each in args))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
'''


def called(place, kind, change="", old="", new=""):
    folder = place.folder / f"code {hash((old, new))}"
    folder.mkdir(exist_ok=True)
    assert old in SOURCE
    (folder / "kernels.py").write_text(SOURCE.replace(old, new) if old else SOURCE)
    paths = f"{folder}:{place.environment()['PYTHONPATH']}"
    found = place.run(SCRIPT, kind, change, PYTHONPATH=paths)
    assert found["is_equal"], found
    assert not found["warnings"]
    return found


@pytest.mark.parametrize("kind", ["dispatch", "function"])
def test_a_restart_hits_and_what_the_class_reads_misses(surroundings, kind):
    cold = called(surroundings, kind)
    assert cold["info"] == [0, 1, 0, 1], cold
    assert {"dispatch": "Holding", "function": "Traced"}[kind] in cold["takes"]
    alone = ["an input holds other tensors" in each for each in cold["alone"]]
    assert alone == [True, True], cold["alone"]
    unread = "kernels.UNREAD = 3; model.weights[0].ints.add_(1)"
    assert called(surroundings, kind, unread)["info"] == [1, 0, 0, 0]
    assert called(surroundings, kind, old="UNREAD = 1.5, 1", new="UNREAD = 1.5, 2")["info"][0] == 1
    number, factor = "model.weights[1].times = 3.0", "kernels.FACTOR = 2.5"
    for change in (number, factor, "kernels.Holding.offset = 1.0"):
        changed = called(surroundings, kind, change)
        assert changed["info"] == [0, 1, 0, 1], change
        assert changed["result"] != cold["result"]
    edited = called(surroundings, kind, old="* FACTOR + self", new="* FACTOR - self")
    assert edited["info"] == [0, 1, 0, 1]
    assert called(surroundings, kind)["info"] == [1, 0, 0, 0]
