"""What was traced and can't be stored runs compiled only where that is known to be right (P7).

A call that runs eagerly counts as a bypass each time; a compiled function that only this process
has counts once.
"""

from __future__ import annotations

import os
import random
import sys

import pytest
import torch

from npugx_cache import cache_compile

NAMELESS = {object(): 2.0}


def holds_a_nameless_key(x):
    return x * sum(NAMELESS.values())


def draws(x):
    return x * random.randint(1, 9)


def asks_for_a_variable(x):
    return x * (2 if os.environ.get("NPUGX_TEST_OF_THIS") else 3) * sum(NAMELESS.values())


LIMIT = sys.getrecursionlimit


def asks_by_another_name(x):
    return x * LIMIT() * sum(NAMELESS.values())


def asks_for_a_builtin(x):
    return x * len(os.sep) * sum(NAMELESS.values())


def called(cached, function, times=3):
    x = torch.ones(2)
    for _ in range(times):
        state = random.getstate()
        expected = function(x)
        random.setstate(state)
        assert torch.equal(cached(x), expected)
    return cached.cache_info().bypasses


def test_where_nothing_but_a_portable_form_is_missing_it_runs_compiled(tmp_path):
    assert (
        called(cache_compile(holds_a_nameless_key, cache_dir=tmp_path), holds_a_nameless_key) == 1
    )


@pytest.mark.parametrize("function", [draws, asks_for_a_variable])
def test_for_any_other_reason_or_question_it_runs_eagerly(tmp_path, function):
    assert called(cache_compile(function, cache_dir=tmp_path), function) == 3


def test_a_question_about_the_process_is_known_by_any_name(tmp_path):
    cached = cache_compile(asks_by_another_name, cache_dir=tmp_path)
    called(cached, asks_by_another_name, times=1)
    before = LIMIT()
    sys.setrecursionlimit(before + 100)
    try:
        called(cached, asks_by_another_name, times=1)
    finally:
        sys.setrecursionlimit(before)


def test_a_global_may_hide_a_builtin(tmp_path, monkeypatch):
    cached = cache_compile(asks_for_a_builtin, cache_dir=tmp_path)
    assert called(cached, asks_for_a_builtin, times=2) == 1
    monkeypatch.setitem(globals(), "len", lambda _: 7)
    called(cached, asks_for_a_builtin, times=2)


def test_a_trace_leaves_the_random_numbers_of_the_process_alone(tmp_path):
    random.seed(0)
    before = random.getstate()
    cache_compile(draws, cache_dir=tmp_path).warm(torch.ones(2))
    assert random.getstate() == before
