"""With what a stage of triage caches the function that it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npugx_cache import cache_compile, config
from npugx_cache.triage import ways
from npugx_cache.triage.plan import Plan

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
    recipe, settings = ways.Cached(plan(tmp_path)).changed(cached._recipe, cached._settings)
    other = type(cached)(recipe, settings)
    torch.testing.assert_close(other(torch.ones(2)), torch.full((2,), 2.0))
    assert other.cache_info().misses == 1
    assert settings == config.Settings(cache_dir=tmp_path / "stores" / "cold")
    assert not (tmp_path / "workers").exists()
