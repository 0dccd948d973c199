"""How a stage of triage runs a call, and what it keeps for the stages after it."""

from __future__ import annotations

import contextlib
import enum
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from npugx_cache import cache_compile, config
from npugx_cache.triage import events, ways
from npugx_cache.triage.plan import Plan
from npugx_cache.triage.recorder import Recorder

if TYPE_CHECKING:
    from pathlib import Path

    from npugx_cache.triage.plan import Way


def plan(folder: Path, way: Way = "cold") -> Plan:
    return Plan(
        way=way,
        target="model:net",
        arguments=(),
        inputs=None,
        calls=1,
        seed=0,
        scratch=str(folder),
        events=str(folder / f"{way}.jsonl"),
        folder=str(folder),
        save_inputs=False,
    )


def doubled(x):
    return x * 2


def test_a_stage_compiles_where_workers_must_not(tmp_path, monkeypatch):
    monkeypatch.setenv("NPUGX_CACHE_ON_MISS", "raise")
    monkeypatch.setenv("NPUGX_CACHE_RECOMPILE_LIMIT", "0")
    monkeypatch.setenv("NPUGX_CACHE_MAX_ENTRIES", "1")
    cached = cache_compile(doubled, backend="aot_eager", cache_dir=tmp_path / "workers")
    recipe, settings = ways.Cached(plan(tmp_path)).adapt_recipe(cached._recipe, cached._settings)
    other = type(cached)(recipe, settings)
    torch.testing.assert_close(other(torch.ones(2)), torch.full((2,), 2.0))
    assert other.cache_info().misses == 1
    assert settings == config.Settings(cache_dir=tmp_path / "stores" / "cold", verify="off")
    assert not (tmp_path / "workers").exists()


class Mode(enum.IntEnum):
    FAST = 1


class Name(enum.StrEnum):
    FAST = "fast"


def returns(x, given):
    return x * 2, given


@pytest.mark.parametrize(
    "given", [Mode.FAST, Name.FAST, np.float64(0.5), np.int64(1), math.nan, 1j, None, torch.float16]
)
def test_a_plain_value_equals_itself_in_a_later_stage(tmp_path, given):
    for way in ("eager", "eager again"):
        asked = plan(tmp_path, way)
        told = events.Events(tmp_path / f"{way}.jsonl")
        cached = cache_compile(returns, cache_dir=tmp_path / "own")
        with contextlib.closing(told._file):
            recorder = Recorder(asked, told, ways.of(asked, told))
            recorder.run(cached, cached._recipe, (torch.ones(2), given), {})
        kinds = [e["kind"] for e in events.read(tmp_path / f"{way}.jsonl") if e["event"] == "end"]
        assert kinds == ["equal"]
