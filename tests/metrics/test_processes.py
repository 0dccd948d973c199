"""What processes count, cold and restored: as values, as Prometheus reads them, and as spans."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from npugx_cache.counters import BYPASS_REASONS, MISS_REASONS
from npugx_cache.store.format.signing import new_secret

WORKER = Path(__file__).with_name("worker.py")
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def counted(once):
    def make(surroundings):
        return {name: surroundings.run(WORKER, "fork") for name in ("cold", "restored")}

    return once("metrics", make)


@pytest.fixture(scope="module")
def traced(once):
    def make(surroundings):
        on = {"NPUGX_TEST_SPANS": "1"}
        found = {name: surroundings.run(WORKER, **on) for name in ("cold", "restored")}
        key = surroundings.folder / "key"
        key.write_text(new_secret())
        key.chmod(0o600)
        tier = {"NPUGX_CACHE_REMOTE": f"fs://{key}.tier", "NPUGX_CACHE_KEY_FILE": str(key)}
        found["remote"] = surroundings.beside("remote").run(WORKER, **on, **tier)
        faulty = surroundings.beside("faulty")
        on = {"NPUGX_TEST_SPANS": "faulty"}
        for name in ("cold", "restored"):
            found[f"faulty {name}"] = faulty.run(WORKER, **on)
        return found

    return once("spans", make)


def test_a_hit_saves_what_the_miss_lost(counted):
    cold, restored = (counted[name]["metrics"] for name in ("cold", "restored"))
    assert (cold["hits"], cold["misses"], cold["stored"], cold["bypasses"]) == (0, 2, 2, 1)
    assert cold["miss_reasons"] == {"first": 1, "tensors": 1}
    assert (restored["hits"], restored["misses"], restored["stored"]) == (2, 0, 0)
    assert restored["bypass_reasons"] == cold["bypass_reasons"] == {"refused": 1}
    assert cold["seconds_lost"] > 0
    assert restored["seconds_saved"] == pytest.approx(cold["seconds_lost"])
    assert restored["seconds_lost"] == cold["seconds_saved"] == 0
    assert restored["bytes_read"] > cold["bytes_read"] > 0
    assert cold["bytes_written"] > restored["bytes_written"] == 0


def test_each_function_counts_the_same_for_itself(counted):
    cold, info = (found := counted["cold"]["metrics"]), found["info"]
    for name in ("misses", "stored", "seconds_lost", "miss_reasons"):
        assert info[name] == cold[name]
    assert info["bypass_reasons"] == {}  # they are of the other function


def test_a_forked_child_counts_from_zero_and_leaves_its_parent_alone(counted):
    for name, outcome in (("cold", "misses"), ("restored", "hits")):
        before, right, after = counted[name]["child"]
        assert not any(value for what, value in before.items() if what != "info")
        assert right
        assert after[outcome] == 1
        assert after["info"][outcome] == before["info"][outcome] + 1
        assert counted[name]["parent after"] == counted[name]["metrics"]


def test_prometheus_reads_the_same(counted):
    for each in (counted["cold"], counted["restored"]):
        found = each["parent after"]
        families = {f.name: f for f in text_string_to_metric_families(each["text"])}
        assert {family.type for family in families.values()} == {"counter"}
        values = {
            (s.name, s.labels.get("reason")): s.value
            for f in families.values()
            for s in f.samples
            if "operation" not in s.labels  # see test_remote.py
        }
        for kind in MISS_REASONS:
            told = values.pop(("npugx_cache_misses_total", kind))
            assert told == found["miss_reasons"].get(kind, 0)
        for kind in BYPASS_REASONS:
            told = values.pop(("npugx_cache_bypasses_total", kind))
            assert told == found["bypass_reasons"].get(kind, 0)
        names = {"saved_seconds": "seconds_saved", "lost_seconds": "seconds_lost"}
        names |= {f"{what}_bytes": f"bytes_{what}" for what in ("read", "written", "evicted")}
        names |= {f"remote_{what}_bytes": f"remote_bytes_{what}" for what in ("read", "written")}
        for (name, _), value in values.items():
            field = name.removeprefix("npugx_cache_").removesuffix("_total")
            assert value == pytest.approx(found[names.get(field, field)])
        assert len(values) == len(found) - len({"misses", "bypasses", "info"}) - 4  # by kind


def test_no_call_imports_prometheus_or_opentelemetry(counted):
    assert counted["cold"]["loaded"] == counted["restored"]["loaded"] == []


def test_spans_of_a_cold_process_name_the_phases_of_each_compile(traced):
    lookups = [s for s in traced["cold"]["spans"] if s["name"] == "npugx_cache.lookup"]
    ends = [(s["npugx_cache.outcome"], s["npugx_cache.reason"]) for s in lookups]
    assert ends == [("miss", "first"), ("miss", "tensors"), ("bypass", "refused")]
    for lookup in lookups:
        inside = [s["name"] for s in traced["cold"]["spans"] if s["parent"] == lookup["id"]]
        assert "npugx_cache.tracing and lowering" in inside
        published = "npugx_cache.publishing" in inside
        assert published == (lookup["npugx_cache.outcome"] == "miss")
        assert lookup["npugx_cache.function"] in ("__main__.double", "__main__.prints")


def test_spans_of_a_restored_process_are_those_of_lookups(traced):
    ends = [(s["name"], s["npugx_cache.outcome"]) for s in traced["restored"]["spans"]]
    assert ends == [("npugx_cache.lookup", end) for end in ("hit", "hit", "bypass")]


def test_a_span_covers_the_wait_for_a_remote_tier(traced):
    spans = traced["remote"]["spans"]
    lookups = {span["id"] for span in spans if span["name"] == "npugx_cache.lookup"}
    fetching = [span for span in spans if span["name"] == "npugx_cache.fetching"]
    assert {span["parent"] for span in fetching} == lookups
    assert not [s for s in traced["cold"]["spans"] if s["name"] == "npugx_cache.fetching"]


def test_the_span_of_a_lookup_that_raises_has_no_text_of_the_exception(traced):
    (raised,) = traced["restored"]["raised"]
    assert raised["status"] == ["ERROR", "Uncacheable"]
    assert raised["events"] == []


def test_a_fault_of_the_users_tracing_reaches_no_call(traced):
    for name in ("cold", "restored"):
        there, here = (traced[f"{before}{name}"]["metrics"] for before in ("", "faulty "))
        for what in ("hits", "misses", "bypasses", "stored"):
            assert here[what] == there[what]
