"""What cache_compile takes, under which name, and what it says about what it can't take."""

from __future__ import annotations

import copy
import functools
import pickle
import re

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from npugx_cache import arguments, cache_compile
from npugx_cache.errors import Uncacheable
from npugx_cache.private import runtime


def scaled(x, scale=1):
    return x * scale


def test_a_partial_has_the_name_of_the_function_that_it_calls():
    part = functools.partial(functools.partial(scaled), scale=2)
    part.mark = "not merged with the partial outside"
    part = functools.partial(part)
    function, owner = arguments.split(part)
    assert owner is part
    assert arguments.name_of(function, owner) == arguments.name_of(scaled)
    assert function(owner, 3) == 6


async def awaited(x):
    return x


def yielding(x):
    yield x


@pytest.mark.parametrize("function", [awaited, yielding])
def test_a_partial_of_what_is_no_graph_is_refused(function):
    with pytest.raises(TypeError, match="a generator or a coroutine"):
        cache_compile(functools.partial(function))


def test_a_partial_in_a_class_is_not_bound_to_the_object(tmp_path):
    class Holder:
        call = cache_compile(functools.partial(scaled, scale=2), cache_dir=tmp_path)

    assert torch.equal(Holder().call(torch.ones(2)), 2 * torch.ones(2))


class Scaling(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x, offset=1):
        return x * self.factor + offset


def test_what_is_bound_already_is_not_bound_to_an_object_of_the_class_that_holds_it(tmp_path):
    other = Scaling(2)

    class Holder:
        bound = cache_compile(other.forward, cache_dir=tmp_path)
        of_class = cache_compile(Scaling(3), cache_dir=tmp_path)

    assert torch.equal(Holder().bound(torch.ones(2)), torch.full((2,), 3.0))
    assert torch.equal(Holder().of_class(torch.ones(2)), torch.full((2,), 4.0))
    assert Holder.bound is Holder().bound


def test_a_copied_or_pickled_module_has_its_own_partial(tmp_path):
    module = Scaling(2)
    module.forward = functools.partial(module.forward, offset=3)
    cache_compile(module, cache_dir=tmp_path)
    for made in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        made.factor = 5
        assert torch.equal(made(torch.ones(2)), torch.full((2,), 8.0))
    assert torch.equal(module(torch.ones(2)), torch.full((2,), 5.0))


def test_a_partial_of_a_method_or_of_a_builtin_is_compiled(tmp_path):
    layer, x = nn.Linear(2, 2), torch.ones(2)
    forward = cache_compile(functools.partial(layer.forward), cache_dir=tmp_path)
    add = cache_compile(functools.partial(torch.add, alpha=2), cache_dir=tmp_path)
    with torch.no_grad():
        assert torch.equal(forward(x), layer(x))
        assert torch.equal(add(x, x), 3 * x)
    assert forward.cache_info().stored == add.cache_info().stored == 1


def test_a_module_whose_forward_is_a_partial_is_compiled(tmp_path):
    module = nn.Linear(2, 2)
    module.forward = functools.partial(type(module).forward, module)
    wanted = module(torch.ones(2))
    cache_compile(module, cache_dir=tmp_path)
    with torch.no_grad():
        assert torch.equal(module(torch.ones(2)), wanted)
    assert module.forward.cache_info().stored == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")  # since torch 2.14
def test_a_module_of_torchscript_is_refused_with_what_to_do_instead():
    traced = torch.jit.trace(nn.Linear(2, 2), torch.ones(2))
    with pytest.raises(TypeError, match="give the module that it was made of"):
        cache_compile(traced)


def test_the_module_inside_of_a_ddp_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # otherwise gloo resolves the host's name
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        module = DistributedDataParallel(nn.Linear(2, 2))
        cached = cache_compile(module, strict=True, cache_dir=tmp_path)
        with torch.no_grad(), pytest.raises(Uncacheable, match=r"cache_compile\(ddp.module\)"):
            cached(torch.ones(1, 2))
    finally:
        distributed.destroy_process_group()


@pytest.mark.filterwarnings("default::DeprecationWarning")  # torch's own, of torch.jit
def test_what_torch_compile_was_given_is_taken_only_if_nothing_was_added():
    compiled = torch.compile(scaled, backend="eager")

    @functools.wraps(compiled)
    def shifted(x):
        return compiled(x) + 1

    hooked = torch.compile(Scaling(2), backend="eager")
    hooked.register_forward_hook(lambda module, args, result: result + 1)
    replaced = torch.compile(Scaling(2), backend="eager")
    replaced.forward = scaled
    inside = Scaling(2)
    assert runtime.uncompiled(compiled) is scaled
    assert runtime.uncompiled(torch.compile(inside, backend="eager")) is inside
    twice = torch.compile(torch.compile(inside, backend="eager"), backend="eager")
    assert runtime.uncompiled(twice) == inside.forward
    for target in (shifted, hooked, replaced, scaled, inside):
        assert runtime.uncompiled(target) is target


def test_results_without_grad_are_told_once_where_a_model_is_in_training_mode(tmp_path, caplog):
    def told(call):
        caplog.clear()
        with caplog.at_level("INFO", logger="npugx_cache"):
            assert not call().requires_grad
        return sum("carry no grad" in record.getMessage() for record in caplog.records)

    model = cache_compile(nn.Linear(2, 2), cache_dir=tmp_path)
    assert told(lambda: model(torch.ones(1, 2))) == 1
    assert told(lambda: model(torch.ones(1, 2))) == 0
    assert told(lambda: model(torch.ones(3, 2))) == 0

    quiet = cache_compile(nn.Linear(2, 2).eval(), cache_dir=tmp_path)
    assert told(lambda: quiet(torch.ones(1, 2))) == 0
    with torch.no_grad():
        assert (
            told(lambda: cache_compile(nn.Linear(2, 2), cache_dir=tmp_path)(torch.ones(1, 2))) == 0
        )

    def step(module, x):
        return module(x)

    cached = cache_compile(step, cache_dir=tmp_path)
    assert told(lambda: cached(nn.Linear(2, 2), torch.ones(1, 2))) == 1
    assert told(lambda: cached(nn.Linear(2, 2), torch.ones(1, 2))) == 0


class Callable:
    factor = 2

    def __call__(self, x):
        return x * self.factor


@pytest.mark.parametrize(
    ("target", "advice"),
    [
        (property(lambda self: self), "not a property; put @property above @cache_compile"),
        (Callable(), "not a Callable; give its method `__call__`"),
    ],
)
def test_a_target_that_is_no_function_is_refused_with_what_to_write(target, advice):
    with pytest.raises(TypeError, match=f"{re.escape(advice)}$"):
        cache_compile(target)


class GenerationMixin:
    def generate(self, x):
        return self(x)


class Generates(GenerationMixin, torch.nn.Module):
    def forward(self, x):
        return x * 2


class HandsOn(torch.nn.Module):
    """As peft's wrappers are."""

    def __init__(self):
        super().__init__()
        self.base = torch.nn.Sequential(Generates())

    def forward(self, x):
        return self.base(x)

    def generate(self, x):
        return self.base[0].generate(x)


def test_a_wrapper_whose_generate_calls_past_it_says_so_and_the_advice_works(caplog):
    model = HandsOn()
    cache_compile(model)
    said = caplog.messages[-1]
    assert "HandsOn.forward: generate() runs the forward of base.0 instead" in said
    advised = said.rpartition("to cache that, ")[2]
    assert advised == "cache_compile(model.get_submodule('base.0'))"
    cache_compile(model.get_submodule("base.0"))
    model.generate(torch.ones(3))
    assert model.forward.cache_info().misses == 0
    assert model.base[0].forward.cache_info().misses == 1


@pytest.mark.parametrize("model", [Generates(), torch.nn.Sequential(Generates())], ids=["own", ""])
def test_a_model_that_generates_by_its_own_forward_says_nothing(caplog, model):
    cache_compile(model)
    assert not caplog.records
