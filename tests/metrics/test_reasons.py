"""Each miss and each bypass is counted under one of few kinds of reasons."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from torch.utils._python_dispatch import TorchDispatchMode

from npugx_cache import cache_compile
from npugx_cache.conditions.causes import Failed, kind_of
from npugx_cache.conditions.data import Kind
from npugx_cache.config import Settings
from npugx_cache.counters import (
    BYPASS_REASONS,
    MISS_REASONS,
    PROCESS,
    REMOTE_OPERATIONS,
    REMOTE_OUTCOMES,
    Counters,
    metrics,
)
from npugx_cache.counters.prometheus import FAMILIES, prometheus_text
from npugx_cache.errors import CacheMiss
from npugx_cache.key import fingerprint
from npugx_cache.store import PrunePolicy, open_store
from npugx_cache.store.io import syscalls

X = torch.ones(3)


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("NPUGX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    PROCESS.forget()
    return tmp_path / "cache"


def scale(x, by=2):
    return x * by


def reads(x, settings):
    return x * settings["by"]


def writes(x):
    print("no graph has this")
    return x


class Watches(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def missed():
    found = metrics()
    assert sum(found.miss_reasons.values()) == found.misses
    return dict(found.miss_reasons)


def bypassed():
    found = metrics()
    assert sum(found.bypass_reasons.values()) == found.bypasses
    return dict(found.bypass_reasons)


def test_misses_by_tensors_values_and_options():
    cached = cache_compile(reads)
    for x, settings in ((X, {"by": 2}), (torch.ones(4), {"by": 2}), (X, {"by": 3})):
        cached(x, settings)
    cache_compile(reads, options={"remove_noop_ops": False})(X, {"by": 2})
    assert missed() == {"first": 1, "tensors": 1, "values": 1, "options": 1}
    assert cached.cache_info().miss_reasons == {"first": 1, "tensors": 1, "values": 1}


def test_misses_by_code_and_by_settings(monkeypatch):
    cache_compile(scale)(X)
    monkeypatch.setattr(scale, "__code__", (lambda x, by=2: x * by + 1).__code__)
    cache_compile(scale)(X)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium" if before != "medium" else "high")
    try:
        cache_compile(scale)(X)
    finally:
        torch.set_float32_matmul_precision(before)
    assert missed() == {"first": 1, "code": 1, "settings": 1}


def test_misses_where_the_store_is_no_help(store, monkeypatch):
    cache_compile(scale)(X)
    for blob in (store / "v1" / "cas").rglob("*"):
        if blob.is_file():
            blob.write_bytes(b"damaged")
    cache_compile(scale)(X)
    monkeypatch.setenv("NPUGX_CACHE", "off")
    cache_compile(scale)(X)
    assert missed() == {"first": 1, "damaged": 1, "no_store": 1}


@pytest.mark.parametrize("part", ["ac", "cas"])
def test_a_prune_beside_a_lookup_is_no_damage(store, monkeypatch, caplog, part):
    """The entry goes after the folder of the key, or after the manifest, was read."""
    cache_compile(scale)(X)
    real = syscalls.open_read

    def pruned_before(name, at=None):
        # A thread of the store reads its journal at any time: only the lookup's own files count.
        if f"/v1/{part}/" in f"{Path(f'/proc/self/fd/{at}').readlink()}/{name}":
            monkeypatch.setattr(syscalls, "open_read", real)
            assert open_store(Settings(cache_dir=store)).prune(PrunePolicy(everything=True)).entries
        return real(name, at)

    monkeypatch.setattr(syscalls, "open_read", pruned_before)
    assert torch.equal(cache_compile(scale, strict=True)(X), X * 2)
    assert syscalls.open_read is real
    assert missed() == {"first": 2}
    told = [each for each in caplog.records if each.name == "npugx_cache"]
    assert not [each for each in told if each.levelno >= logging.WARNING]


def test_a_miss_that_raises_is_counted_too(monkeypatch):
    monkeypatch.setenv("NPUGX_CACHE_ON_MISS", "raise")
    with pytest.raises(CacheMiss):
        cache_compile(scale)(X)
    assert missed() == {"first": 1}


def test_bypasses_that_settings_ask_for(monkeypatch):
    monkeypatch.setenv("NPUGX_CACHE_ON_MISS", "eager")
    cache_compile(scale)(X)
    monkeypatch.delenv("NPUGX_CACHE_ON_MISS")
    monkeypatch.setenv("NPUGX_CACHE_RECOMPILE_LIMIT", "0")
    limited = cache_compile(scale)
    limited(X)
    limited(X)  # the reason is remembered, with its kind
    assert bypassed() == {"on_miss": 1, "recompile_limit": 2}
    assert limited.cache_info().bypass_reasons == {"recompile_limit": 2}


def test_bypasses_of_what_is_refused_and_what_is_not_served():
    cached = cache_compile(writes)
    cached(X)
    cached(X)
    with Watches():
        cache_compile(scale)(X)
    assert bypassed() == {"refused": 2, "unsupported": 1}


def test_every_factor_of_a_key_has_a_kind():
    kinds = {factor.name: fingerprint.kind_of(factor.name) for factor in fingerprint.FACTORS}
    assert set(kinds.values()) == {
        *("code", "options", "versions", "device", "settings", "tensors"),
    }
    assert kinds["function.code"] == fingerprint.kind_of("graph.nodes") == "code"
    assert fingerprint.kind_of("graph.input.3") == "tensors"
    assert kinds["torch"] == kinds["python"] == "versions"
    assert kinds["torch.*"] == kinds["dynamo.*"] == "settings"
    assert fingerprint.kind_of("option.capture_limit") == "options"
    assert kinds["cuda.device"] == kinds["cpu"] == kinds["device.*"] == "device"


def test_every_condition_has_a_kind():
    kinds = {kind: kind_of([Failed(kind, "x", "x was 1")]) for kind in Kind}
    assert set(kinds.values()) == {"code", "settings", "tensors", "values"}
    assert kinds[Kind.FUNCTION] == kinds[Kind.CONTENTS] == "code"
    assert kind_of([Failed(None, "x", "x does not exist")]) == "values"
    assert {*kinds.values()} < {*MISS_REASONS}


def test_counts_of_several_threads_are_all_there():
    total = Counters()
    own = [Counters(total) for _ in range(4)]

    def count(counters):
        for _ in range(2000):
            counters.count_lookup("hits", seconds=0.5)

    threads = [threading.Thread(target=count, args=(each,)) for each in own for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.info(0).hits for each in own] == [4000] * 4
    assert (total.metrics().hits, total.metrics().seconds_saved) == (16000, 8000.0)


def test_a_hit_is_told_to_prometheus_with_what_it_saves():
    cache_compile(scale)(X)
    restored = cache_compile(scale)
    restored(X)
    assert restored.cache_info().seconds_saved == pytest.approx(metrics().seconds_lost)
    families = text_string_to_metric_families(prometheus_text())
    told = {s.name: s.value for family in families for s in family.samples if not s.labels}
    assert told["npugx_cache_hits_total"] == told["npugx_cache_stored_total"] == 1
    saved = told["npugx_cache_saved_seconds_total"]
    assert saved == pytest.approx(told["npugx_cache_lost_seconds_total"])
    assert saved > 0


def test_infos_can_be_written_as_json():
    cached = cache_compile(scale)
    cached(X)
    json.dumps([cached.cache_info()._asdict(), metrics()._asdict()])
    assert {*BYPASS_REASONS}.isdisjoint(MISS_REASONS)


def test_the_page_explains_every_reason_and_every_metric():
    page = (Path(__file__).parents[2] / "docs/deployment.md").read_text()
    for kind in (*MISS_REASONS, *BYPASS_REASONS):
        assert page.count(f"| `{kind}` |") == 1, kind
    for outcome in REMOTE_OUTCOMES:
        assert page.count(f"| `{outcome}` |") == 1, outcome
    rows = page.partition("| operation |")[2].partition("\n\n")[0]
    assert all(f"`{operation}`" in rows for operation in REMOTE_OPERATIONS)
    for family in FAMILIES:
        labels = "" if family.parts is None else f"{{{', '.join(family.parts[2])}}}"
        assert f"`{family.name}{labels}`" in page, family.name
