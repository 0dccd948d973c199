"""The journal of misses: no fault of it reaches a call, and nothing makes it grow without end."""

from __future__ import annotations

import logging

import pytest
import torch

from npugx_cache import cache_compile
from npugx_cache.config import state_folder
from npugx_cache.store import journal_of


def double(x):
    return x * 2


def branch(x):
    return x + 1 if x.sum() > 0 else x - 1


def triple(x):
    return x * 3


@pytest.fixture
def cached_in(tmp_path, monkeypatch):
    """Cached functions whose store and state folder are of this test alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def make(function):
        return cache_compile(function, cache_dir=tmp_path / "cache")

    return make


@pytest.fixture
def lines(tmp_path):
    """The lines of the journal, after it was written."""

    def read():
        journal = journal_of(str(tmp_path / "cache"), state_folder())
        journal.flush()
        return journal.load()

    return read


@pytest.mark.parametrize("function", [double, branch])
def test_a_fault_while_a_line_is_noted_does_not_reach_the_call(
    cached_in, lines, monkeypatch, caplog, function
):
    caplog.set_level(logging.DEBUG, "npugx_cache")
    monkeypatch.setenv("RANK", "9" * 5000)  # Python refuses to read a number of so many digits
    cached, x = cached_in(function), torch.ones(3)
    assert torch.equal(cached(x), function(x))
    assert "not noted in the journal" in caplog.text
    assert lines() == []
    monkeypatch.setenv("RANK", "9")
    assert torch.equal(cached(x.double()), function(x.double()))
    assert {line.rank for line in lines()} <= {9}


def test_functions_of_one_store_share_one_journal(cached_in, lines):
    for function in (double, triple):
        cached_in(function)(torch.ones(3))
    assert sorted(line.function.rpartition(".")[2] for line in lines()) == ["double", "triple"]
    assert len([*state_folder().rglob("misses.jsonl")]) == 1


def test_bypasses_with_ever_new_reasons_are_noted_a_bounded_number_of_times(cached_in, lines):
    cached = cached_in(branch)
    lookup = cached._state.lookup
    for size in range(1000):
        lookup._bypass(f"the graph holds for other sizes: {size}")
    assert cached.cache_info().bypasses == 1000
    assert str(cached.explain()[0]) == "the graph holds for other sizes: 999"
    assert 10 < len(lines()) < 100
