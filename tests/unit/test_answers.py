"""Functions that are marked as constant, where a graph can't be stored and runs here alone."""

from __future__ import annotations

import torch

from npugx_cache import cache_compile

TABLE = {"value": 2}


@torch.compiler.assume_constant_result
def answer():
    return TABLE["value"]


def returns_the_answer(x):
    return x * 2, answer()


def test_the_answer_is_asked_for_at_each_call(tmp_path, monkeypatch):
    cached = cache_compile(returns_the_answer, cache_dir=tmp_path)
    for value in (2, 3, 4):
        monkeypatch.setitem(TABLE, "value", value)
        assert cached(torch.ones(1)) == (torch.full((1,), 2.0), value)
