"""A module that is reloaded, loaded once more, or loaded beside the one in sys.modules (P1)."""

import importlib
import importlib.util
import os
import sys

import pytest
import torch

from npugx_cache import cache_compile

SOURCE = """\
import torch

K = {by}


class T:
    def scaled(self, x):
        return x * {by}

    def __len__(self):
        return {by}


class Net(torch.nn.Module):
    def forward(self, x):
        return x * {by}


def by_global(x):
    return x * K


def by_class(x):
    return T().scaled(x)
"""
CALLED = """\
import loaded_anew as part
from loaded_anew import by_global as taken


def method(x):
    return part.T().scaled(x) * len(part.T())


def module(x):
    return part.Net()(x)


def through_a_function(x):
    return part.by_class(x)


def of_its_globals(x):
    return part.by_global(x)


def of_a_name(x):
    return taken(x)


def imported_inside(x):
    import loaded_anew

    return loaded_anew.T().scaled(x)


def of_an_argument(x, given):
    return given.scaled(x) * len(given)
"""
NAMES = tuple(
    line.removeprefix("def ").partition("(")[0]
    for line in CALLED.splitlines()
    if line.startswith("def ")
)


class Calls:
    """Functions of one module that use another one, which is loaded in several ways."""

    def __init__(self, folder):
        self.file, self.times = folder / "loaded_anew.py", 0
        (folder / "calls_it.py").write_text(CALLED)
        self.write(2)
        self.user = importlib.import_module("calls_it")
        self.cached = {
            name: cache_compile(getattr(self.user, name), cache_dir=folder / "cache")
            for name in NAMES
        }

    def write(self, by):
        self.times += 1
        self.file.write_text(SOURCE.format(by=by))
        os.utime(self.file, (self.times * 1000, self.times * 1000))  # else the code is not read
        importlib.invalidate_caches()

    def bind(self, module):
        self.user.part, self.user.taken = module, module.by_global

    def load_beside(self):
        spec = importlib.util.spec_from_file_location("loaded_anew", self.file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def check(self):
        x = torch.ones(2)
        for name, call in self.cached.items():
            given = (x, self.user.part.T()) if name == "of_an_argument" else (x,)
            for _ in range(3):
                assert torch.equal(call(*given), getattr(self.user, name)(*given)), name


@pytest.fixture
def calls(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Calls(tmp_path)
    with torch.no_grad():
        made.check()
        yield made
    for name in ("calls_it", "loaded_anew"):
        sys.modules.pop(name, None)


def test_it_is_reloaded(calls):
    importlib.reload(calls.user.part)
    calls.check()
    assert calls.cached["method"].cache_info().hits == 1, "equal code, so the entry serves"
    calls.write(3)
    calls.bind(importlib.reload(calls.user.part))
    calls.check()
    assert calls.cached["method"].cache_info().misses == 2


@pytest.mark.thorough
def test_it_is_loaded_once_more(calls):
    calls.write(3)
    del sys.modules["loaded_anew"]
    loaded = importlib.import_module("loaded_anew")
    calls.check()  # the name still stands for the old one
    calls.bind(loaded)
    calls.check()


@pytest.mark.thorough
def test_it_is_loaded_beside_the_one_in_sys_modules(calls):
    first = calls.user.part
    calls.bind(calls.load_beside())
    calls.check()
    other = calls.load_beside()
    other.K = 7
    calls.bind(other)
    calls.check()
    assert "is not sys.modules['loaded_anew']" in str(calls.cached["of_a_name"].explain()[0])
    calls.bind(first)
    calls.check()


@pytest.mark.thorough
def test_it_is_in_sys_modules_no_more(calls):
    del sys.modules["loaded_anew"]
    calls.check()
    sys.modules["loaded_anew"] = calls.load_beside()
    calls.check()
