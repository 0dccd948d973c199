"""Edits of a class that no name leads to are seen at every call, also by the C++ check."""

import copy
import functools
import sys

import pytest
import torch
from torch import nn

from npugx_cache import cache_compile


class Root:
    def ended(self, x):
        return x


class Ending:
    def ended(self, x):
        return x / 2


class Named(Root):
    pass


def build():
    class Base(Named):
        def added(self, x):
            return x + 1

    class Box(Base):
        factor = 2

        def scaled(self, x):
            return x * self.factor

    class Last(Box):
        things = [1]  # noqa: RUF012

    return Last()


def run(x, box):
    return box.ended(box.added(box.scaled(x))) if box else x


def replaces_a_method(cls):
    cls.scaled = lambda self, x: x * 3


def by_super():
    class Base:
        factor = 2

    class Box(Base):
        factor = 9

        def scaled(self, x):
            return x * super().factor

    return Box


def scaled_by_a_made_one(x, cls):
    return cls().scaled(x)


@pytest.mark.parametrize("calls", [1, 8])
def test_a_value_that_is_read_without_a_guard(tmp_path, calls):
    cls, x = by_super(), torch.ones(3)
    cached = cache_compile(scaled_by_a_made_one, cache_dir=tmp_path)
    for _ in range(calls):
        assert torch.equal(cached(x, cls), x * 2)
    cls.__base__.factor = 3
    for _ in range(3):
        assert torch.equal(cached(x, cls), x * 3)


def edits_the_code(cls):
    cls.scaled.__code__ = (lambda self, x: x * 3).__code__


def replaces_a_method_of_the_base(cls):
    cls.__base__.added = lambda self, x: x + 3


def replaces_a_number(cls):
    cls.factor = 3


def adds_a_length(cls):
    cls.__len__ = lambda self: 0


def adds_a_length_in_the_place_of_a_list(cls):
    del cls.things
    cls.__len__ = lambda self: 0


def replaces_a_base(cls):
    class Other(cls.__base__):
        def added(self, x):
            return x + 7

    cls.__bases__ = (Other,)


def adds_a_length_to_a_base_with_a_name(cls):
    Named.__len__ = lambda self: 0


def replaces_a_base_of_a_base_with_a_name(cls):
    Named.__bases__ = (Ending,)


@pytest.mark.parametrize(
    "edit",
    [
        replaces_a_method,
        edits_the_code,
        replaces_a_method_of_the_base,
        replaces_a_number,
        adds_a_length,
        adds_a_length_in_the_place_of_a_list,
        replaces_a_base,
        adds_a_length_to_a_base_with_a_name,
        replaces_a_base_of_a_base_with_a_name,
    ],
)
@pytest.mark.parametrize(
    "calls", [*(pytest.param(calls, marks=pytest.mark.thorough) for calls in (1, 2)), 8]
)
def test_an_edit_after_some_calls(tmp_path, edit, calls, monkeypatch):
    monkeypatch.setattr(
        sys.modules[__name__], "Named", type("Named", (Root,), {"__module__": __name__})
    )
    box, x = build(), torch.ones(3)
    cached = cache_compile(run, cache_dir=tmp_path, dynamic=False)
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


def tripled(self, x):
    return x * 3


def scaled_by(factor):
    def scaled(x):
        return x * factor

    return scaled


def test_a_module_of_fx_whose_graph_stays_in_the_process_calls_another_function(tmp_path):
    graph = torch.fx.Graph()
    graph.output(graph.call_function(scaled_by(2), (graph.placeholder("x"),)))
    module, x = torch.fx.GraphModule(nn.Module(), graph), torch.ones(3)
    cached = cache_compile(lambda x: module(x), cache_dir=tmp_path)
    assert [cached(x)[0].item() for _ in range(3)] == [2, 2, 2]
    for node in module.graph.nodes:
        if node.op == "call_function":
            node.target = scaled_by(7)
    module.recompile()
    assert [cached(x)[0].item() for _ in range(3)] == [7, 7, 7]


def test_a_module_whose_class_gets_another_forward(tmp_path, monkeypatch):
    module, x = cache_compile(Doubling(), cache_dir=tmp_path), torch.ones(3)
    held = module.forward
    assert torch.equal(module(x), x * 2)
    monkeypatch.setattr(Doubling, "forward", tripled)
    assert torch.equal(module(x), x * 3)
    assert torch.equal(held(x), x * 2)  # as a bound method that somebody holds
    assert module.forward.cache_info()[:3] == (0, 1, 0)
    monkeypatch.undo()
    assert torch.equal(module(x), x * 2)
    assert module.forward.cache_info()[:3] == (1, 0, 0)


def test_a_new_forward_that_is_warmed(tmp_path, monkeypatch):
    module, x = cache_compile(Doubling(), cache_dir=tmp_path), torch.ones(3)
    module.forward.warm(x)
    monkeypatch.setattr(Doubling, "forward", tripled)
    module.forward.warm(x)
    assert torch.equal(module(x), x * 3)
    assert module.forward.cache_info()[:3] == (0, 1, 0)


def test_a_new_forward_that_calls_the_old_one(tmp_path, monkeypatch):
    module, x = cache_compile(Doubling(), cache_dir=tmp_path), torch.ones(3)
    old = module.forward
    assert torch.equal(module(x), x * 2)
    monkeypatch.setattr(Doubling, "forward", lambda self, x: old(x) + 1)
    for _ in range(3):
        assert torch.equal(module(x), x * 2 + 1)


def test_a_wrapper_around_the_forward_keeps_it(tmp_path, monkeypatch):
    """As accelerate puts hooks around the `forward` of a module."""
    module, x = cache_compile(Doubling(), cache_dir=tmp_path), torch.ones(3)
    module.inner = module.forward
    module.forward = functools.partial(lambda module, x: module.inner(x), module)
    assert torch.equal(module(x), x * 2)
    monkeypatch.setattr(Doubling, "forward", tripled)
    for _ in range(3):
        assert torch.equal(module(x), x * 2)


def test_a_class_that_gets_the_cached_forward_of_a_module(tmp_path, monkeypatch):
    module, x = cache_compile(Doubling(), cache_dir=tmp_path), torch.ones(3)
    assert torch.equal(module(x), x * 2)
    monkeypatch.setattr(Doubling, "forward", module.forward)
    for called in (module, Doubling(), module):
        assert torch.equal(called(x), x * 2)


def test_a_module_whose_class_gets_a_forward_that_is_no_function(tmp_path, monkeypatch):
    module, x = cache_compile(Doubling(), cache_dir=tmp_path), torch.ones(3)
    assert torch.equal(module(x), x * 2)
    monkeypatch.setattr(Doubling, "forward", torch.neg)
    assert torch.equal(module(x), -x)
    assert "forward" not in vars(module)


def test_a_class_that_gets_another_forward_at_every_call(tmp_path, monkeypatch):
    monkeypatch.setenv("NPUGX_CACHE_RECOMPILE_LIMIT", "3")
    module, x = cache_compile(Doubling(), cache_dir=tmp_path), torch.ones(3)
    for number in range(6):
        source = f"def forward(self, x):\n    return x * {number}\n"
        space = {}
        exec(compile(source, __file__, "exec"), space)
        monkeypatch.setattr(Doubling, "forward", space["forward"])
        assert torch.equal(module(x), x * number)
    assert len(list((tmp_path / "v1").rglob("*.manifest"))) <= 3


@pytest.mark.thorough
def test_an_edit_of_one_class_of_many_with_one_body(tmp_path):
    """More than are remembered: torch.fx makes a class for each module."""
    boxes, x = [build() for _ in range(140)], torch.ones(3)

    def all_of(x, boxes):
        return sum(box.scaled(x) for box in boxes)

    cached = cache_compile(all_of, cache_dir=tmp_path)
    for _ in range(4):
        assert torch.equal(cached(x, boxes), all_of(x, boxes))
    type(boxes[0]).scaled = lambda self, x: x * 3
    assert torch.equal(cached(x, boxes), all_of(x, boxes))
    assert cached.cache_info().misses == 2


def copy_an_object(cls):
    copy.copy(cls())


def ask_for_annotations(cls):
    return cls.__annotations__


@pytest.mark.parametrize("use", [copy_an_object, ask_for_annotations])
def test_what_changes_no_result_costs_no_compile(tmp_path, use):
    cached, box, x = cache_compile(run, cache_dir=tmp_path), build(), torch.ones(3)
    for _ in range(8):
        assert torch.equal(cached(x, box), run(x, box))
        use(type(box))
    assert cached.cache_info()[:3] == (0, 1, 0)
