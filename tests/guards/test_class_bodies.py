"""Edits of a class that no name leads to are seen at every call, also by the C++ check."""

import pytest
import torch
from torch import nn

from npugx_cache import cache_compile


def build():
    class Base:
        def added(self, x):
            return x + 1

    class Box(Base):
        factor = 2

        def scaled(self, x):
            return x * self.factor

    return Box()


def run(x, box):
    return box.added(box.scaled(x)) if box else x


def replaces_a_method(cls):
    cls.scaled = lambda self, x: x * 3


def edits_the_code(cls):
    cls.scaled.__code__ = (lambda self, x: x * 3).__code__


def replaces_a_method_of_the_base(cls):
    cls.__base__.added = lambda self, x: x + 3


def replaces_a_number(cls):
    cls.factor = 3


def adds_a_length(cls):
    cls.__len__ = lambda self: 0


@pytest.mark.parametrize(
    "edit",
    [
        replaces_a_method,
        edits_the_code,
        replaces_a_method_of_the_base,
        replaces_a_number,
        adds_a_length,
    ],
)
@pytest.mark.parametrize("calls", [1, 2, 8])
def test_an_edit_after_some_calls(tmp_path, edit, calls):
    box, x = build(), torch.ones(3)
    cached = cache_compile(run, cache_dir=tmp_path)
    for _ in range(calls):
        assert torch.equal(cached(x, box), run(x, box))
    edit(type(box))
    expected = run(x, box)
    for _ in range(3):
        assert torch.equal(cached(x, box), expected)
    assert cached.cache_info()[:3] == (0, 2, 0)


def test_a_class_that_is_made_at_every_call_costs_one_compile(tmp_path):
    x, cached = torch.ones(3), cache_compile(run, cache_dir=tmp_path)
    for _ in range(20):  # more than are remembered
        box = build()
        assert torch.equal(cached(x, box), run(x, box))
    assert cached.cache_info().misses == 1


def test_a_module_of_fx_that_is_recompiled(tmp_path):
    module, x = torch.fx.symbolic_trace(nn.Sequential(nn.ReLU())), torch.ones(2, 3)
    cached = cache_compile(module, cache_dir=tmp_path)
    for _ in range(4):
        assert torch.equal(cached(x), x)
    (end,) = module.graph.find_nodes(op="output")
    with module.graph.inserting_before(end):
        end.args = (module.graph.call_method("neg", (end.args[0],)),)
    module.recompile()
    for _ in range(4):
        assert torch.equal(cached(x), -x)


class Doubling(nn.Module):
    def forward(self, x):
        return x * 2


def test_a_module_whose_class_gets_another_forward(tmp_path, monkeypatch):
    module, x = cache_compile(Doubling(), cache_dir=tmp_path), torch.ones(3)
    held = module.forward
    assert torch.equal(module(x), x * 2)
    monkeypatch.setattr(Doubling, "forward", lambda self, x: x * 3)
    assert torch.equal(module(x), x * 3)
    assert torch.equal(held(x), x * 3)
    assert module.forward.cache_info()[:3] == (0, 1, 0)
    monkeypatch.undo()
    assert torch.equal(module(x), x * 2)
    assert module.forward.cache_info()[:3] == (1, 0, 0)


def test_a_module_whose_class_gets_a_forward_that_is_no_function(tmp_path, monkeypatch):
    module, x = cache_compile(Doubling(), cache_dir=tmp_path), torch.ones(3)
    assert torch.equal(module(x), x * 2)
    monkeypatch.setattr(Doubling, "forward", torch.neg)
    assert torch.equal(module(x), -x)
    assert "forward" not in vars(module)
