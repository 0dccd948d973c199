"""On a torch that the cache does not serve, calls run uncached and say so; a switch tries it."""

from __future__ import annotations

import re
import sys
from unittest.mock import patch

import pytest
import torch

from npugx_cache import PassError, cache_compile, cached_graph
from npugx_cache import version as served
from npugx_cache.key import environment


def doubled(x):
    return x * 2


@pytest.fixture
def cached(tmp_path, monkeypatch):
    def make(version, **variables):
        monkeypatch.delenv("NPUGX_CACHE_UNTESTED_TORCH", raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("torch.__version__", version)
        return cache_compile(doubled, cache_dir=tmp_path)

    return make


def test_a_compile_of_torchs_own_under_another_state_refuses_nothing(tmp_path):
    """Torch 2.10 takes the state of the last `torch.compile` for that of the next trace."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        torch.compile(doubled, backend="eager")(torch.ones(3))
    finally:
        torch.set_float32_matmul_precision(before)
    cached = cache_compile(doubled, cache_dir=tmp_path)
    assert torch.equal(cached(torch.ones(3)), torch.full((3,), 2.0))
    assert cached.cache_info()[:3] == (0, 1, 0)


def test_the_installed_torch_is_served():
    assert environment.obstacle(untested_torch=False) is None


@pytest.mark.parametrize("version", ["2.9.1", "2.16.0", "2.17.0a0+git1234", "3.0.0"])
def test_another_torch_runs_uncached_with_one_line_that_says_which_are_served(
    cached, caplog, version
):
    call, x = cached(version), torch.ones(3)
    for _ in range(3):
        assert torch.equal(call(x), x * 2)
    info = call.cache_info()
    assert (info.hits, info.misses, info.stored, info.bypasses) == (0, 0, 0, 3)
    [line] = caplog.messages
    names = ", ".join(f"{major}.{minor}" for major, minor in served.TESTED_TORCH)
    assert f"torch {version} is not served: the cache works with torch {names}" in line
    assert ("NPUGX_CACHE_UNTESTED_TORCH=1 tries it on" in line) == (version != "2.9.1")


def test_the_switch_tries_a_torch_that_is_not_served(cached, monkeypatch):
    monkeypatch.setattr(served, "TESTED_TORCH", ((2, 16),))
    x = torch.ones(3)
    refused = cached(torch.__version__)
    assert torch.equal(refused(x), x * 2)
    assert refused.cache_info().bypasses == 1
    tried = cached(torch.__version__, NPUGX_CACHE_UNTESTED_TORCH="1")
    assert torch.equal(tried(x), x * 2)
    info = tried.cache_info()
    assert (info.misses, info.stored, info.bypasses) == (1, 1, 0)


def test_the_switch_does_not_reach_below_the_oldest_torch(cached):
    call = cached("2.9.1", NPUGX_CACHE_UNTESTED_TORCH="1")
    call(torch.ones(3))
    assert call.cache_info().bypasses == 1


def test_every_served_torch_is_one_that_the_backend_runs_on():
    assert all(version >= served.OLDEST_TORCH for version in served.TESTED_TORCH)
    with patch("torch.__version__", "2.13.1"):
        assert environment.obstacle(untested_torch=False) is None


def test_a_version_that_is_not_served_is_refused_whatever_its_suffix():
    with patch("torch.__version__", "2.16.0a0+gitabc"):
        reason = environment.obstacle(untested_torch=False)
    assert reason is not None
    assert re.search(r"torch 2\.16\.0a0\+gitabc is not served", reason)


def test_what_a_process_can_not_cache_is_told_once_for_all_functions(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("torch.__version__", "2.16.9")
    x = torch.ones(3)
    for function in (doubled, lambda x: x + 1):
        cached = cache_compile(function, cache_dir=tmp_path)
        assert torch.equal(cached(x), function(x))
        assert "torch 2.16.9 is not served" in str(cached.explain())
    [line] = caplog.messages
    assert line.startswith("nothing is cached in this process: torch 2.16.9 is not served")


def test_a_torch_that_is_too_old_is_not_told_of_the_switch():
    assert "UNTESTED" in str(served.unserved_torch("2.16.0"))
    for untested in (False, True):
        reason = served.unserved_torch("2.9.1+cu128", untested=untested)
        assert reason is not None
        assert "UNTESTED" not in reason


def test_with_a_torch_that_is_too_old_a_graph_runs_as_it_was_traced(monkeypatch):
    monkeypatch.setattr("torch.__version__", "2.7.1")
    graph = torch.fx.symbolic_trace(doubled)
    run = cached_graph(graph, [torch.ones(3)])
    assert torch.equal(run(torch.ones(3)), torch.full((3,), 2.0))


def test_a_torch_without_what_a_trace_needs_is_refused_with_the_name(tmp_path, monkeypatch):
    from npugx_cache.trace import call

    monkeypatch.delitem(sys.modules, call.__name__)
    monkeypatch.setitem(sys.modules, "npugx_cache.trace.dynamo", None)
    monkeypatch.delattr("npugx_cache.trace.call")
    monkeypatch.delattr("npugx_cache.trace.dynamo")
    monkeypatch.setattr("torch.__version__", "2.16.8")
    monkeypatch.setenv("NPUGX_CACHE_UNTESTED_TORCH", "1")
    cached = cache_compile(doubled, cache_dir=tmp_path)
    assert torch.equal(cached(torch.ones(2)), torch.full((2,), 2.0))
    assert cached.cache_info().bypasses == 1
    assert "this torch lacks what a trace needs: " in str(cached.explain())


def test_on_a_torch_that_is_not_served_a_pass_of_the_users_that_raises_is_told(monkeypatch):
    def fail(*_):
        raise ValueError("a pass of the user's")

    monkeypatch.setattr("torch.__version__", "2.16.7")
    graph = torch.fx.symbolic_trace(doubled)
    with pytest.raises(PassError, match="a pass of the user's"):
        cached_graph(graph, [torch.ones(3)], options={"post_grad_custom_post_pass": fail})
