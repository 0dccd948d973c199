"""What a store adds to the counts of the process: bytes, evictions and waits for a lock."""

from __future__ import annotations

import threading

import pytest

from npugx_cache.config import Settings
from npugx_cache.counters import PROCESS, metrics
from npugx_cache.store import Draft, Locked, NotLocked, PrunePolicy, open_store

NAME = "ab" * 16


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    PROCESS.forget()
    return open_store(Settings(cache_dir=tmp_path / "cache"))


def published(store, number):
    draft = Draft(
        key=f"{number:064x}",
        identity="1d" * 16,
        kind="graph",
        cost_seconds=1.0,
        factors=(),
        about={"function": f"f{number}"},
        blobs={"program": b"%d " % number * 1000},
    )
    return store.publish(draft).manifest


def test_bytes_are_those_that_lie_on_the_disk(store):
    manifest = published(store, 1)
    files = [p for part in ("ac", "cas") for p in (store.root / "v1" / part).rglob("*")]
    assert metrics().bytes_written == sum(p.stat().st_size for p in files if p.is_file())
    assert metrics().bytes_read == 0
    store.read(manifest, ["program"])
    assert metrics().bytes_read == manifest.blobs[0].stored_size
    store.read(manifest, ["nothing"])
    assert metrics().bytes_read == manifest.blobs[0].stored_size


def test_evictions_are_counted_where_they_happen(store):
    for number in range(3):
        published(store, number)
    store.prune(PrunePolicy(max_entries=1), dry_run=True)
    assert (metrics().evictions, metrics().bytes_evicted) == (0, 0)
    report = store.prune(PrunePolicy(max_entries=1))
    assert (metrics().evictions, metrics().bytes_evicted) == (2, report.freed_bytes)


def test_only_a_lock_that_somebody_else_holds_is_a_wait(store):
    answers, asked = [], []

    def done():
        asked.append(1)
        return len(asked) == 2

    def wait():
        with store.lock(NAME, wait=60, done=done) as answer:
            answers.append(answer)

    with store.lock(NAME, wait=0) as held:
        assert isinstance(held, Locked)
        assert (metrics().lock_waits, metrics().lock_wait_seconds) == (0, 0)
        other = threading.Thread(target=wait)
        other.start()
        other.join()
        with store.lock("cd" * 16, wait=0):
            pass
    assert isinstance(answers[0], NotLocked)
    assert metrics().lock_waits == 1
    assert metrics().lock_wait_seconds >= answers[0].waited > 0
