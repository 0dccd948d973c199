"""On a Python that the cache was not tested on, nothing is cached, and the reason names it."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
import torch

from npugx_cache import cache_compile
from npugx_cache import version as served
from npugx_cache.key import environment

SERVED = ", ".join(f"{major}.{minor}" for major, minor in served.TESTED_PYTHON)


def test_this_python_is_served():
    here = sys.implementation.name, sys.version_info[:3], sys.abiflags
    assert served.unserved_python(*here) is None
    assert environment.obstacle(untested_torch=False) is None


@pytest.mark.parametrize("version", served.TESTED_PYTHON)
def test_every_served_python_is_served_whatever_its_patch_level(version):
    assert served.unserved_python("cpython", (*version, 1), "") is None
    assert served.unserved_python("cpython", (*version, 99), "d") is None


@pytest.mark.parametrize(
    ("version", "flags", "named"),
    [
        ((3, 10, 4), "", "Python 3.10.4 is not served"),
        ((3, 99, 0), "", "Python 3.99.0 is not served"),
        ((*served.TESTED_PYTHON[-1], 5), "t", "5t is not served"),  # without a global lock
    ],
)
def test_another_python_is_named_with_those_that_are_served(version, flags, named):
    reason = served.unserved_python("cpython", version, flags)
    assert reason.endswith(f"{named}: the cache works with Python {SERVED}")


def test_python_3_13_0_is_refused_for_its_bug():
    """Guards don't see there that an attribute was set: later calls would be wrong hits."""
    for rest in ((), ("candidate", 1), ("final", 0)):  # as in `sys.version_info`
        reason = served.unserved_python("cpython", (3, 13, 0, *rest), "")
        assert reason == "Python 3.13.0 is not served, because of its bug gh-125608: 3.13.1 is"
        assert served.unserved_python("cpython", (3, 13, 1, *rest), "") is None


def test_pypy_is_refused():
    reason = served.unserved_python("pypy", (3, 11, 13), "")
    assert reason == "pypy is not supported: caller frames are CPython bytecode"


def test_on_another_python_calls_run_uncached_and_say_so_once(tmp_path, monkeypatch, caplog):
    reason = served.unserved_python("cpython", (3, 99, 0), "")
    monkeypatch.setattr(environment, "_UNSERVED_PYTHON", reason)
    cached = cache_compile(lambda x: x * 2, cache_dir=tmp_path)
    for _ in range(3):
        assert torch.equal(cached(torch.ones(3)), torch.full((3,), 2.0))
    assert cached.cache_info()[:4] == (0, 0, 3, 0)
    [line] = caplog.messages
    assert reason in line


def test_the_package_names_the_pythons_that_are_served():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    label = "Programming Language :: Python :: 3."
    named = [each for each in project["classifiers"] if each.startswith(label)]
    assert named == [f"{label}{minor}" for _, minor in served.TESTED_PYTHON]
    first = ".".join(map(str, served.TESTED_PYTHON[0]))
    assert project["requires-python"] == f">={first}"
