"""Workers that must not compile: `NPUGX_CACHE_ON_MISS`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from npugx_cache import cache_compile

SCRIPT = Path(__file__).with_name("storming.py")
CALLS = 20
pytestmark = pytest.mark.thorough


def raised(surroundings, name, **settings):
    worker = surroundings.start(SCRIPT, name, NPUGX_CACHE_ON_MISS="raise", **settings)
    _, err = worker.process.communicate()
    assert worker.process.returncode == 1
    return err.splitlines()[-1]


@pytest.mark.parametrize("name", ["shapes", "warm"])
def test_a_miss_raises_with_its_reasons_and_stores_nothing(surroundings, name):
    said = raised(surroundings, name)
    assert said.startswith("npugx_cache.errors.CacheMiss: ")
    assert "plain: no stored graph fits this call: no entry for this function." in said
    assert surroundings.listing() == []

    surroundings.run(SCRIPT, "last")  # a worker that may compile
    assert ", is (1,). NPUGX_CACHE_ON_MISS=raise" in raised(surroundings, name)
    assert len(surroundings.listing()) == 2
    noted = surroundings.command("misses", "--format", "json").stdout
    misses = json.loads(noted)["misses"]
    assert [row["outcome"] for row in misses if not row["stored"]] == ["miss", "miss"]


def test_a_fault_of_the_folder_is_a_miss_too(surroundings):
    said = raised(surroundings, "last", NPUGX_CACHE_DIR="/dev/null/no")
    assert "no stored graph fits this call: the store is not used: " in said


def test_a_worker_that_must_hit_runs_on_what_is_stored(surroundings):
    surroundings.run(SCRIPT, "last")
    row = surroundings.run(SCRIPT, "last", NPUGX_CACHE_ON_MISS="raise")
    assert row["right"]
    assert row["info"][:4] == [2, 0, 0, 0]


@pytest.mark.parametrize("name", ["shapes", "warm"])
def test_a_miss_runs_eagerly_with_one_warning(surroundings, name):
    surroundings.run(SCRIPT, "last")
    row = surroundings.run(SCRIPT, name, NPUGX_CACHE_ON_MISS="eager")
    assert row["right"]
    hits, misses, _, stored, *_ = row["info"]
    assert (hits, misses, stored) == (2, 0, 0)
    (warning,) = row["warnings"]
    assert "runs uncached: no stored graph accepts this call, and NPUGX_CACHE_ON_MISS" in warning
    assert len(surroundings.listing()) == 2


def test_a_value_that_is_none_of_the_three_is_refused(surroundings):
    worker = surroundings.start(SCRIPT, "last", NPUGX_CACHE_ON_MISS="fail")
    _, err = worker.process.communicate()
    assert "NPUGX_CACHE_ON_MISS='fail': valid values are compile, eager, raise" in err


def test_a_graph_that_is_stored_after_the_miss_is_found(tmp_path, monkeypatch):
    def scale(x):
        return x * 2

    monkeypatch.setenv("NPUGX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("NPUGX_CACHE_ON_MISS", "eager")
    waiting = cache_compile(scale)
    waiting(torch.ones(3))
    monkeypatch.delenv("NPUGX_CACHE_ON_MISS")
    cache_compile(scale)(torch.ones(3))
    waiting(torch.ones(3))
    assert waiting.cache_info()[:3] == (1, 0, 1)
