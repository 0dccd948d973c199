"""What a remote tier adds to the counts of the process: requests, how they end, seconds, bytes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from npugx_cache.config import Settings
from npugx_cache.counters import PROCESS, metrics
from npugx_cache.counters.prometheus import prometheus_text
from npugx_cache.store import Draft, open_store
from npugx_cache.store.format.signing import new_secret
from npugx_cache.store.remote import tier

sys.path.insert(0, str(Path(__file__).parents[1] / "remote"))

import servers
from proxy import Proxy


@pytest.fixture
def host(tmp_path, monkeypatch):
    """The store of a host that has a folder of its own, and a remote tier."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tier, "BUDGET", 30.0)
    secret = tmp_path / "key"
    secret.write_text(new_secret())
    secret.chmod(0o600)
    PROCESS.forget()

    def opening(name, remote, **settings):
        given = {"trust": "signed", "key_file": secret, "remote": remote, **settings}
        return open_store(Settings(cache_dir=tmp_path / name, **given))

    return opening


def key(number):
    return f"{number:064x}"


def published(store, number):
    draft = Draft(
        key=key(number),
        identity="1d" * 16,
        kind="graph",
        cost_seconds=1.0,
        factors=(),
        about={"function": "f", "signature_id": "s"},
        blobs={"program": b"%d " % number * 1000},
    )
    manifest = store.publish(draft).manifest
    writer = store._opened_remote._writer
    with writer._changed:
        assert writer._changed.wait_for(lambda: not writer._running, 60)
    return manifest


def told(what="lookup"):
    """How often each outcome of an operation came, as Prometheus reads it."""
    families = text_string_to_metric_families(prometheus_text())
    samples = [s for f in families if f.name == "npugx_cache_remote_requests" for s in f.samples]
    found = {s.labels["outcome"]: s.value for s in samples if s.labels["operation"] == what}
    shown = {outcome: number for outcome, number in found.items() if number}
    prefix = f"{what} "
    counted = metrics().remote_requests.items()
    assert shown == {n.removeprefix(prefix): v for n, v in counted if n.startswith(prefix)}
    return shown


def test_a_folder_as_the_tier(host, tmp_path):
    address = f"fs://{tmp_path}/tier"
    one, two = host("one", address), host("two", address)
    manifest = published(one, 1)
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "tier").rglob("*")}
    entry, blob = sizes[manifest.entry], manifest.blobs[0].stored_size
    assert told("stat") == {"absent": 1}
    assert told("write") == {"ok": 2}
    assert (metrics().remote_bytes_written, metrics().remote_bytes_read) == (entry + blob, 0)
    assert told() == {}
    assert two.fetch(key(1), "s").new == 1
    assert (told(), told("list"), told("read")) == ({"ok": 1}, {"ok": 1}, {"ok": 2})
    assert metrics().remote_bytes_read == entry + blob
    assert two.fetch(key(2), "s").new == 0
    assert told() == {"ok": 1, "absent": 1}
    assert set(metrics().remote_seconds) == {"lookup", "list", "read", "stat", "write"}
    assert all(seconds > 0 for seconds in metrics().remote_seconds.values())
    assert "npugx_cache_remote_requests_total" in prometheus_text()


def test_a_lease_that_another_host_holds(host, tmp_path):
    address = f"fs://{tmp_path}/tier"
    one, two = host("one", address), host("two", address)
    name = "ab" * 16
    for each in (one, two):
        each.fetch(key(1), "s")
    with one.lock(name, wait=0):
        assert metrics().lock_waits == 0
        with two.lock(name, wait=0):
            assert told("create") == {"ok": 1, "taken": 1}
            assert metrics().lock_waits == 1


def test_wrong_bytes_and_a_tier_without_a_key(host, tmp_path):
    address = f"fs://{tmp_path}/tier"
    published(host("one", address), 1)
    for path in (tmp_path / "tier/v1/cas").rglob("*"):
        if path.is_file():
            path.write_bytes(b"wrong")
    assert host("two", address).fetch(key(1), "s").new == 0
    host("three", address, trust="private", key_file=None).fetch(key(1), "s")
    assert told() == {"failed": 1, "unusable": 1}


@pytest.mark.skipif(servers.redis_program() is None, reason="no redis-server here")
def test_a_redis_that_goes_down_in_the_middle(host, tmp_path, monkeypatch):
    with servers.redis(tmp_path) as port:
        proxy = Proxy(port)
        try:
            address = f"redis://127.0.0.1:{proxy.port}/0/tier"
            published(host("one", address), 1)
            two = host("two", address)
            assert two.fetch(key(1), "s").new == 1
            assert (told(), told("list")) == ({"ok": 1}, {})
            before = metrics().remote_seconds["lookup"]
            monkeypatch.setattr(tier, "BUDGET", 0.25)
            proxy.set("down")
            for number in range(2, 7):
                two.fetch(key(number), "s")
            counted = told()
            assert counted.pop("ok") == 1
            assert counted.pop("breaker_open") == 2
            assert sum(counted.values()) == 3
            assert counted.keys() <= {"timeout", "failed"}
            assert metrics().remote_seconds["lookup"] > before
        finally:
            proxy.close()
