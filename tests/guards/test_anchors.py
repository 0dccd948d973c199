"""Conditions that are left to the versions of dicts: what is noticed, and when that is given up."""

import gc
import weakref
from collections import OrderedDict

import pytest
import torch
from torch import nn

from npugx_cache import cache_compile


class Doubled:
    scale = property(lambda self: 2 * vars(self)["scale"], lambda *_: None)


class Base:
    pass


class Settings(Base):
    """A plain object, whose attributes Python keeps outside of a dict until somebody asks."""

    def __init__(self):
        self.scale, self.more = 2.0, "more"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.settings = Settings()
        self.table = {"a": 1.5, "b": 2.5}
        self.ordered = OrderedDict(a=1.0, b=3.0)
        self.calls = 0

    def forward(self, x):
        y = self.inner(x) * self.settings.scale * self.table["a"]
        for value in self.ordered.values():
            y = y * 2 + value
        return y + len(self.table) + len(self.inner[0]._forward_hooks)


class Counting(Net):
    def forward(self, x):
        self.calls = self.calls + 1
        return super().forward(x)


def made(kind=Net):
    torch.manual_seed(0)
    return kind().eval()


@pytest.fixture
def cached(tmp_path):
    return lambda model: cache_compile(model.forward, cache_dir=tmp_path)


X = torch.ones(2, 4)


def checker(call):
    (known,) = call._state.specialisations
    return known.conditions


def write_often(settings):
    """In a loop, so that Python's specialised instructions write."""
    for number in range(100):
        settings.scale = float(number)


def renewed(linear):
    linear.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.float64))
    linear.bias = nn.Parameter(torch.ones(4, dtype=torch.float64))
    return linear


WRITES = {
    "an attribute of a plain object": lambda m: setattr(m.settings, "scale", 3.0),
    "an attribute, many times": lambda m: write_often(m.settings),
    "object.__setattr__": lambda m: object.__setattr__(m.settings, "scale", 3.0),
    "vars()": lambda m: vars(m.settings).update(scale=3.0),
    "another __dict__": lambda m: setattr(m.settings, "__dict__", {"scale": 3.0}),
    "a deleted attribute": lambda m: delattr(m.settings, "scale"),
    "a class in place": lambda m: setattr(
        m.settings, "__class__", type("Other", (Settings,), {"scale": property(lambda _: 4.0)})
    ),
    "a property of the class": lambda m: setattr(Settings, "scale", property(lambda _: 5.0)),
    "other bases of the class": lambda m: setattr(Settings, "__bases__", (Doubled, Base)),
    "an item": lambda m: m.table.__setitem__("a", 9.0),
    "|=": lambda m: m.table.__ior__({"a": 9.0}),
    "pop": lambda m: m.table.pop("b"),
    "popitem": lambda m: m.table.popitem(),
    "setdefault": lambda m: m.table.setdefault("c", 0),
    "clear": lambda m: m.table.clear(),
    "another order": lambda m: m.ordered.move_to_end("a"),
    "a module": lambda m: m.inner.append(nn.Tanh()),
    "a module of the same kind": lambda m: m.inner.__setitem__(0, nn.Linear(4, 4).double()),
    "a hook": lambda m: m.inner[0].register_forward_hook(lambda *_: torch.ones(2, 4)),
    "a hook put there by hand": lambda m: m.inner[0]._forward_hooks.update({7: lambda *_: None}),
    "parameters of another dtype": lambda m: renewed(m.inner[0]),
    "data of another dtype": lambda m: setattr(m.inner[0].weight, "data", torch.ones(4, 4).half()),
    "a gradient": lambda m: m.inner[0].weight.requires_grad_(False),
    "training": lambda m: m.train(),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_noticed(cached, write):
    model = made()
    call = cached(model)
    with torch.no_grad():
        for _ in range(3):
            call(X)
        assert checker(call)._native.held is not None
        try:
            WRITES[write](model)
            for _ in range(3):
                same_as_eager(model, call)
        finally:
            Settings.__bases__ = (Base,)
            if "scale" in vars(Settings):
                del Settings.scale


def same_as_eager(model, call):
    try:
        want = type(model).forward(model, X)
    except Exception as error:  # the write broke the model: the call says so too
        with pytest.raises(type(error)):
            call(X)
        return
    torch.testing.assert_close(call(X), want)


def test_a_model_that_is_deleted_is_let_go(tmp_path):
    function = cache_compile(lambda model, x: model.inner(x) * 2, cache_dir=tmp_path)
    model = made()
    with torch.no_grad():
        for _ in range(4):
            function(model, X)
    assert checker(function)._native.held is not None
    weight, model = weakref.ref(model.inner[0].weight), None
    gc.collect()
    assert weight() is None


def test_inputs_are_not_kept(cached):
    call = cached(made())
    inputs, kept = [torch.ones(2, 4) for _ in range(4)], []
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad():
            while inputs:
                x = inputs.pop()
                kept.append(weakref.ref(x))
                call(x)
                del x
        assert [each() for each in kept] == [None] * 4
    finally:
        gc.enable()
    assert checker(call)._native.held is not None


def full_checks(call):
    return checker(call)._held


def test_models_in_turn_are_soon_checked_along_their_paths(tmp_path):
    function = cache_compile(lambda model, x: model.inner(x) * 2, cache_dir=tmp_path)
    models = [made(), made()]
    with torch.no_grad():
        for number in range(40):
            torch.testing.assert_close(function(models[number % 2], X), models[0].inner(X) * 2)
        assert checker(function)._native.held is None
        before = full_checks(function)
        for number in range(10):
            function(models[number % 2], X)
    assert full_checks(function) == before


def test_a_module_that_is_written_to_between_calls_is_soon_checked_along_its_paths(cached):
    model = made()
    call = cached(model)
    with torch.no_grad():
        for number in range(40):
            model.calls = number
            call(X)
        assert checker(call)._native.held is None
        before = full_checks(call)
        for number in range(10):
            model.calls = number
            call(X)
    assert full_checks(call) == before


def test_a_write_that_changes_nothing_is_forgiven(cached):
    model = made()
    call = cached(model)
    with torch.no_grad():
        for _ in range(3):
            call(X)
        model.calls = 5
        for _ in range(4):
            call(X)
        before = full_checks(call)
        for _ in range(5):
            call(X)
    assert full_checks(call) == before
    assert checker(call)._native.held is not None
