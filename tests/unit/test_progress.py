"""One line for each phase of a compile, where it takes longer than some seconds."""

import logging

import pytest
import torch

from npugx_cache import cache_compile, events

PHASES = ["tracing and lowering", "passes", "guards and source facts", "packing"]


def act(x):
    return x * 2 + 1


@pytest.fixture
def told(caplog, tmp_path, monkeypatch):
    """The phases that a compile tells of, where this many seconds are long."""

    def compile_with(seconds):
        monkeypatch.setattr(events, "SLOW_SECONDS", seconds)
        with caplog.at_level(logging.INFO, logger="npugx_cache"):
            cached = cache_compile(act, cache_dir=tmp_path)
            assert torch.equal(cached(torch.ones(3)), torch.full((3,), 3.0))
            assert cached.cache_info().misses == 1
        lines = [r.getMessage() for r in caplog.records if ": compiling: " in r.getMessage()]
        assert all(cached.__qualname__ in line for line in lines)
        return [line.split(": compiling: ")[1].rpartition(" took ")[0] for line in lines]

    return compile_with


def test_a_long_compile_tells_of_each_phase(told):
    assert told(0.0) == PHASES


def test_a_quick_one_says_nothing(told):
    assert told(3600.0) == []


def test_what_was_over_before_is_told_as_soon_as_it_is_long(caplog, monkeypatch):
    monkeypatch.setattr(events, "SLOW_SECONDS", 3600.0)
    with caplog.at_level(logging.INFO, logger="npugx_cache"):
        progress = events.Progress("f")
        progress.done("one")
        assert not caplog.records
        monkeypatch.setattr(events, "SLOW_SECONDS", 0.0)
        progress.done("two")
        progress.done("three")
    assert [r.getMessage().split()[2] for r in caplog.records] == ["one", "two", "three"]
