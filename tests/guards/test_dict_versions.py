"""Versions of dicts in the place of conditions: what is noticed, kept alive, and given up."""

import contextlib
import gc
import itertools
import types
import weakref
from collections import OrderedDict
from functools import partial

import pytest
import torch
from torch import nn

from npugx_cache import cache_compile
from npugx_cache.conditions import check
from npugx_cache.conditions.cpp_check import NativeCheck
from npugx_cache.conditions.data import Kind
from npugx_cache.conditions.dict_versions import KeptDicts
from npugx_cache.conditions.evaluate import Scope
from npugx_cache.private import guard_managers


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
        self.extra = {}
        self.calls = 0

    def loaded(self, weight):
        return weight

    def forward(self, x):
        y = self.inner(x) * self.settings.scale * self.table["a"]
        for value in self.ordered.values():
            y = y * 2 + value
        return y + len(self.table) + len(self.inner[0]._forward_hooks) + len(self.extra)


class Counting(Net):
    def forward(self, x):
        self.calls = self.calls + 1
        return super().forward(x)


def made(kind=Net):
    torch.manual_seed(0)
    return kind().eval()


@pytest.fixture(autouse=True)
def of_small_models(monkeypatch):
    monkeypatch.setattr(check, "_MANY", 0)


def bound(model, folder):
    return cache_compile(model.forward, cache_dir=folder)


def free(model, folder):
    """A function that does not keep the model, called with one that other code keeps."""
    function = cache_compile(type(model).forward, cache_dir=folder)

    def call(x):
        return function(model, x)

    call._state = function._state
    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tests start from the same model, so that the first one compiles it and the others hit."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=[bound, free])
def cached(request, folder):
    return lambda model: request.param(model, folder)


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
    "a merge into an empty dict": lambda m: m.extra.update({"a": 1}),
    "|= into an empty dict": lambda m: m.extra.__ior__({"a": 1}),
    "a mark on a parameter": lambda m: vars(m.inner[0].weight).update(_dynamo_dynamic_indices={0}),
    "another __dict__ of a parameter": lambda m: setattr(
        m.inner[0].weight, "__dict__", {"_dynamo_dynamic_indices": {0}}
    ),
    "another class of a module": lambda m: setattr(
        m.inner[1], "__class__", type("Doubling", (nn.ReLU,), {"forward": lambda _, x: 2 * x})
    ),
    "a hook": lambda m: m.inner[0].register_forward_hook(lambda *_: torch.ones(2, 4)),
    "a hook put there by hand": lambda m: m.inner[0]._forward_hooks.update({7: lambda *_: None}),
    "parameters of another dtype": lambda m: renewed(m.inner[0]),
    "data of another dtype": lambda m: setattr(m.inner[0].weight, "data", torch.ones(4, 4).half()),
    "a gradient": lambda m: m.inner[0].weight.requires_grad_(False),
    "training": lambda m: m.train(),
}


SEEN_ELSEWHERE = {"training"}
"""Writes to what the graph does not depend on, and no dict was written to: `eval()` again."""


def accepts(call, model):
    """Whether the check of later calls would let the graph run, before any call relearns."""
    function = type(model).forward
    scope = Scope({"self": model, "x": X}, function.__globals__)
    return checker(call).holds_quickly(scope)


@pytest.mark.parametrize(
    "cached", [bound, pytest.param(free, marks=pytest.mark.thorough)], indirect=True
)
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(name, marks=[pytest.mark.thorough] if number % 3 else [])
        for number, name in enumerate(WRITES)
    ],
)
def test_a_write_is_noticed(cached, write):
    model = made()
    call = cached(model)
    with torch.no_grad():
        for _ in range(3):
            call(X)
        assert checker(call)._native.versions is not None
        try:
            WRITES[write](model)
            assert write in SEEN_ELSEWHERE or not accepts(call, model)
            for _ in range(3):
                same_as_eager(model, call)
        finally:
            Settings.__bases__ = (Base,)
            if "scale" in vars(Settings):
                del Settings.scale


def test_other_bases_of_a_class_are_noticed_here_and_not_only_where_code_is_watched(cached):
    model = made()
    call = cached(model)
    with torch.no_grad():
        for _ in range(3):
            call(X)
        versions = checker(call)._native.versions
        assert versions.hold()
        try:
            WRITES["other bases of the class"](model)
            assert not versions.hold()
        finally:
            Settings.__bases__ = (Base,)


def same_as_eager(model, call):
    try:
        want = type(model).forward(model, X)
    except Exception as error:  # the write broke the model: the call says so too
        with pytest.raises(type(error)):
            call(X)
        return
    torch.testing.assert_close(call(X), want)


def in_a_cycle(model):
    model.inner.owner = [model]


def with_a_loader(model):
    model.inner[0].weight.loader = model.loaded


def hooked(model):
    model.inner[0].weight.requires_grad_().register_hook(lambda _: model)


def filled(model):
    """Dicts that were empty when the check was made hold the model in the end."""
    model.inner[0].register_forward_hook(lambda *_: model and None)
    model.extra["model"] = model
    model._buffers["of_inner"] = model.inner[0].weight


def compute(model, x):
    return model.inner(x) * (2 + len(model.extra))


class WithMethod(Net):
    pass


def as_argument(model, folder):
    function = cache_compile(compute, cache_dir=folder)
    return function, partial(function, model)


def as_method_of_class(model, folder):
    model.__class__ = WithMethod
    WithMethod.compute = cache_compile(compute, cache_dir=folder)
    method = model.compute
    return WithMethod.compute, method


def as_bound(model, folder):
    function = cache_compile(types.MethodType(compute, model), cache_dir=folder)
    return None, function


def in_place(model, folder):
    compiled = cache_compile(model, cache_dir=folder)
    assert compiled is model
    return None, compiled


def untouched(model):
    pass


WAYS = [as_argument, as_method_of_class, as_bound, in_place]
# All of each with one of the others; all of all of them are thorough.
QUICK = [
    *itertools.product(WAYS, [hooked], [filled]),
    *itertools.product([as_bound], [untouched, in_a_cycle, with_a_loader], [untouched]),
]
REST = [
    pytest.param(*case, marks=pytest.mark.thorough)
    for case in itertools.product(
        WAYS, [untouched, in_a_cycle, with_a_loader, hooked], [untouched, filled]
    )
    if case not in QUICK
]


@pytest.mark.parametrize(("way", "change", "later"), [*QUICK, *REST])
def test_a_model_that_is_deleted_is_let_go(tmp_path, way, change, later):
    model = made()
    change(model)
    function, call = way(model, tmp_path)
    with torch.no_grad():
        for _ in range(4):
            call(X)
    state = (call.forward if way is in_place else call.func if way is as_argument else call)._state
    (known,) = state.specialisations
    assert known.conditions._native.versions is not None
    later(model)
    weight = weakref.ref(model.inner[0].weight)
    del model, call, state, known
    gc.collect()
    assert weight() is None
    del function


def test_a_module_that_is_replaced_is_let_go(cached):
    model = made()
    call = cached(model)
    with torch.no_grad():
        for _ in range(4):
            call(X)
    assert checker(call)._native.versions is not None
    weight = weakref.ref(model.inner[0].weight)
    gc.collect()
    gc.disable()
    try:
        model.inner[0] = nn.Linear(4, 4)
        assert weight() is None
    finally:
        gc.enable()


def test_a_replaced_module_in_a_cycle_is_let_go_at_the_next_call(cached):
    model = made()
    model.inner[0].owner = [model.inner]
    call = cached(model)
    with torch.no_grad():
        for _ in range(4):
            call(X)
        assert checker(call)._native.versions is not None
        weight = weakref.ref(model.inner[0].weight)
        model.inner = made().inner
        same_as_eager(model, call)
    gc.collect()
    assert weight() is None


@pytest.mark.thorough
@pytest.mark.parametrize("last", [X, torch.ones(3, 4), X.double()], ids=["X", "Y", "an error"])
def test_no_graph_of_a_function_keeps_what_another_has_seen_replaced(tmp_path, last):
    model = made()
    model.inner[0].owner = [model.inner]
    call = cache_compile(model.forward, cache_dir=tmp_path, dynamic=False)
    with torch.no_grad():
        for x in (X, torch.ones(3, 4)):
            for _ in range(4):
                call(x)
        weight = weakref.ref(model.inner[0].weight)
        model.inner = made().inner
        with contextlib.suppress(RuntimeError):
            call(last)
    gc.collect()
    assert weight() is None


class WithState(Net):
    def __init__(self):
        super().__init__()
        self.state = {"k": torch.ones(4)}

    def forward(self, x):
        return self.inner(x) + self.state["k"]


def test_a_dict_of_the_user_that_is_replaced_is_let_go_at_once(tmp_path):
    model, states = made(WithState), []
    call = cache_compile(model.forward, cache_dir=tmp_path, dynamic=False)
    with torch.no_grad():
        for number in range(12):
            model.state = {"k": torch.ones(4)}
            states.append(weakref.ref(model.state["k"]))
            for _ in range(3):
                call(torch.ones(2 + number % 3, 4))
    model.state = None
    assert [state() for state in states] == [None] * 12


def test_dicts_are_kept_only_where_the_function_keeps_the_model(tmp_path):
    def kept(call):
        with torch.no_grad():
            for _ in range(4):
                call(X)
        return isinstance(checker(call)._native.versions._tables, KeptDicts)

    assert kept(bound(made(), tmp_path))
    assert not kept(free(made(), tmp_path))
    model = made()
    call = cache_compile(types.MethodType(compute_with_another, model), cache_dir=tmp_path)
    assert not kept(partial_with_state(call, OTHER))


def compute_with_another(model, other, x):
    return model.inner(x) + other.inner(x)


OTHER = made()


def partial_with_state(call, *args):
    def run(x):
        return call(*args, x)

    run._state = call._state
    return run


def test_a_tensor_gets_no_weak_reference(cached):
    """`torch.utils.swap_tensors` swaps no tensor that has one."""
    model = made()
    call, tensors = cached(model), [*model.parameters()]
    with torch.no_grad():
        call(X)
        before = list(map(weakref.getweakrefcount, tensors))
        for _ in range(4):
            call(X)
    assert checker(call)._native.versions is not None
    assert list(map(weakref.getweakrefcount, tensors)) == before


KEPT = made()
HELD = weakref.ref(KEPT)


def test_a_model_that_no_manager_reaches_is_checked_along_its_path(tmp_path):
    function = cache_compile(lambda x: HELD().inner(x) * 2, cache_dir=tmp_path)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(function(X), KEPT.inner(X) * 2)
    assert isinstance(checker(function)._native, NativeCheck)
    assert checker(function)._native.versions is None


def test_each_of_several_shapes_gets_versions(tmp_path):
    function = cache_compile(lambda m, x: m.inner(x) * 2, cache_dir=tmp_path, dynamic=False)
    model = made()
    with torch.no_grad():
        for number in range(12):
            function(model, torch.ones(2 + number % 3, 4))
    found = [each.conditions._native.versions for each in function._state.specialisations]
    assert len(found) == 3
    assert None not in found


@pytest.mark.parametrize("stored", ["that fits", "that does not reach its places"])
def test_inputs_are_not_kept(cached, stored):
    """Also not by what a lookup caught when it asked an entry that is not for this model."""
    if stored != "that fits":
        longer = made()
        longer.inner.append(nn.Tanh())
        with torch.no_grad():
            cached(longer)(X)
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
    assert checker(call)._native.versions is not None


def full_checks(call):
    return checker(call)._held


def test_models_in_turn_are_soon_checked_along_their_paths(tmp_path):
    function = cache_compile(lambda model, x: model.inner(x) * 2, cache_dir=tmp_path)
    models = [made(), made()]
    with torch.no_grad():
        for number in range(40):
            torch.testing.assert_close(function(models[number % 2], X), models[0].inner(X) * 2)
        assert checker(function)._native.versions is None
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
        assert checker(call)._native.versions is None
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
    assert checker(call)._native.versions is not None


def test_without_versions_every_condition_is_checked(cached, monkeypatch):
    def fails(_):
        raise RuntimeError("not in this torch")

    monkeypatch.setattr(guard_managers, "tensor_metadata", fails)
    model = made()
    call = cached(model)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(call(X), model(X))
    assert call._state.info().hits + call._state.info().misses == 1
    assert checker(call)._native.versions is None


class Block(nn.Module):
    def forward(self, x):
        return x.relu()


KINDS = {"block": Block}


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList(Block() for _ in range(6))

    def forward(self, x):
        for layer in self.inner:
            x = layer(x) * (2 if type(layer) == KINDS["block"] else 3)  # noqa: E721 - compared so
        return x


OTHERS = {
    "another class in the global": lambda _: KINDS.update(block=nn.Tanh),
    "another class of a layer": lambda m: setattr(
        m.inner[4], "__class__", type("Other", (Block,), {})
    ),
}


@pytest.mark.parametrize("write", OTHERS)
def test_the_class_of_all_layers_is_compared_with_another_place_once(cached, monkeypatch, write):
    monkeypatch.setitem(KINDS, "block", Block)
    model = made(Asking)
    call = cached(model)
    with torch.no_grad():
        for _ in range(3):
            call(X)
        assert len(checker(call).conditions.arguments(Kind.SAME)) >= 6
        assert len(checker(call)._native._residue._on_call) <= 1
        assert accepts(call, model)
        OTHERS[write](model)
        assert not accepts(call, model)
        torch.testing.assert_close(call(X), model(X))
