"""What is edited between two calls, or while the check of later calls is built, is noticed."""

from operator import is_

import pytest
import torch

from npugx_cache import cache_compile
from npugx_cache.conditions import check


def scaled_by(factor):
    def scaled(x, more=1.0):
        return x * factor + more

    return scaled


def freed(factor):
    def scaled(x, more=1.0):
        return x - factor * more

    return scaled


EDITS = {
    "its code": lambda f: setattr(f, "__code__", freed(3.0).__code__),
    "its defaults": lambda f: setattr(f, "__defaults__", (7.0,)),
    "what it captured": lambda f: setattr(f.__closure__[0], "cell_contents", 5.0),
    "another function": lambda f: TABLE.update({torch.nn.Linear: scaled_by(9.0)}),
}
TABLE = {}


def all_of_them(x):
    for function in TABLE.values():
        x = function(x)
    return x


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_noticed(tmp_path, edit):
    TABLE.clear()
    function = TABLE[torch.nn.Linear] = scaled_by(2.0)
    x = torch.ones(3)
    call = cache_compile(all_of_them, cache_dir=tmp_path)
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(call(x), all_of_them(x))
        (known,) = call._state.specialisations
        tests = known.conditions._native._residue._on_values
        assert is_ in [test for _, test, _ in tests]
        EDITS[edit](function)
        for _ in range(4):
            assert torch.equal(call(x), all_of_them(x))


class Shifting:
    def __call__(self, x, factor, shift=3.0):
        return x * factor + shift


def shifted(x):
    return Shifting()(x, 2.0)  # of an object that the trace makes, no guard reads the defaults


def test_a_default_that_is_added_behind_the_others_is_noticed(tmp_path):
    x = torch.ones(3)
    call = cache_compile(shifted, cache_dir=tmp_path)
    defaults = Shifting.__call__.__defaults__
    try:
        with torch.no_grad():
            for _ in range(4):
                assert torch.equal(call(x), shifted(x))
            # The first default stands where it stood, and is that of another parameter now.
            Shifting.__call__.__defaults__ = (*defaults, 7.0)
            for _ in range(4):
                assert torch.equal(call(x), shifted(x))
    finally:
        Shifting.__call__.__defaults__ = defaults


def test_defaults_that_are_taken_away_are_noticed(tmp_path):
    x = torch.ones(3)
    call = cache_compile(shifted, cache_dir=tmp_path)
    defaults = Shifting.__call__.__defaults__
    try:
        for _ in range(4):
            call(x)
        Shifting.__call__.__defaults__ = None
        with pytest.raises(TypeError, match="shift"):
            call(x)
    finally:
        Shifting.__call__.__defaults__ = defaults


# --- while the check of later calls is built from live objects


NAMED = scaled_by(2.0)


class Doubling:
    def __call__(self, x):
        return 2 * x


class Halving(Doubling):
    def __call__(self, x):
        return x / 2


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.last = Doubling()

    def forward(self, x):
        return self.last(NAMED(all_of_them(x) * self.weight))


WHILE_BUILT = {
    "a function by position": lambda _: setattr(
        TABLE[torch.nn.Linear], "__code__", freed(3.0).__code__
    ),
    "a function by its name": lambda _: setattr(NAMED, "__code__", freed(3.0).__code__),
    "a tensor": lambda net: setattr(net.weight, "data", torch.ones(3, dtype=torch.float64)),
    "a class": lambda net: setattr(net.last, "__class__", Halving),
}


@pytest.mark.parametrize("at_least", [0, 256], ids=["versions", "managers"])
@pytest.mark.parametrize("edit", WHILE_BUILT)
def test_an_edit_while_guards_are_built_is_noticed(tmp_path, monkeypatch, edit, at_least):
    monkeypatch.setattr(check, "_MANY", at_least)
    TABLE.clear()
    TABLE[torch.nn.Linear] = scaled_by(2.0)
    net, x, build = Net(), torch.ones(3), check.NativeCheck
    call = cache_compile(net.forward, cache_dir=tmp_path)

    def edited_before(*args):
        monkeypatch.setattr(check, "NativeCheck", build)
        WHILE_BUILT[edit](net)
        return build(*args)

    code = NAMED.__code__
    try:
        with torch.no_grad():
            call(x)
            monkeypatch.setattr(check, "NativeCheck", edited_before)
            call(x)
            assert check.NativeCheck is build
            for _ in range(6):
                want = Net.forward(net, x)
                assert torch.equal(call(x), want)
    finally:
        NAMED.__code__ = code
