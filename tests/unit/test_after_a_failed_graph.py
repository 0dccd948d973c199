"""What follows when a compiled graph raises where the function itself does not."""

from __future__ import annotations

import pytest
import torch

from npugx_cache import cache_compile


def taken_or_negated(x):
    """Traced without the handler, because in a trace no operator raises."""
    try:
        return torch.take(x, (x * 2).long())
    except IndexError:
        return -x


def test_the_function_itself_runs_without_gradients_too(tmp_path):
    cached = cache_compile(taken_or_negated, cache_dir=tmp_path)
    x = torch.arange(3.0, requires_grad=True)
    for _ in range(2):
        result = cached(x)
        assert torch.equal(result, -x)
        assert not result.requires_grad
    assert taken_or_negated(x).requires_grad


@pytest.mark.parametrize("mode", ["on", "readonly", "off"])
def test_the_graph_is_not_compiled_again_by_this_process(tmp_path, monkeypatch, mode):
    monkeypatch.setenv("NPUGX_CACHE", mode)
    cached, x = cache_compile(taken_or_negated, cache_dir=tmp_path), torch.arange(3.0)
    for _ in range(4):
        assert torch.equal(cached(x), -x)
    assert cached.cache_info().misses == 1
