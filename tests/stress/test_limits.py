"""What the index counts is what lies on disk, and limits hold, whatever happens in between."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import OrderedDict
from pathlib import Path

import pytest

from npugx_cache.store import PrunePolicy, Published
from npugx_cache.store.io import syscalls

pytestmark = pytest.mark.thorough

SLACK = 40_000  # the largest entry


def on_disk(store):
    parts = [p for part in ("ac", "cas") for p in (store.root / "v1" / part).rglob("*")]
    stats = [path.stat() for path in parts if path.is_file()]
    return sum(s.st_size for s in stats), sum(s.st_blocks for s in stats) * 512


def made_old(store, rng):
    """Let the index keep what it reads: folders that have just changed it does not trust."""
    stamp = time.time() - 60 - rng.random()
    for part in ("ac", "cas"):
        for shard in (store.root / "v1" / part).iterdir():
            os.utime(shard, (stamp, stamp))


@pytest.mark.parametrize("seed", range(4))
def test_after_puts_evictions_and_kills_the_index_counts_every_byte(
    opening, draft, failpoints, seed
):
    rng = random.Random(seed)
    store = opening()
    pool = [rng.randbytes(rng.randrange(1, 9000)) for _ in range(15)]

    def put():
        blobs = {f"b{n}": rng.choice(pool) for n in range(rng.randrange(4))}
        store.publish(draft(key=f"{rng.randrange(12):064x}", blobs=blobs, cost_seconds=0.0))

    def evict():
        store.prune(PrunePolicy(max_entries=rng.randrange(8)))

    def hit():
        for manifest in store.candidates(f"{rng.randrange(12):064x}").manifests:
            store.record_hit(manifest)
        store.flush()

    for _ in range(80):
        work = rng.choice([put, put, put, evict, hit])
        if rng.random() < 0.2:
            failpoints.killed_at(rng.randrange(1, 40), work)
        else:
            work()
        if rng.random() < 0.5:
            made_old(store, rng)
        overview, _ = store.overview()
        assert (overview.size, overview.disk_bytes) == on_disk(store)


@pytest.mark.parametrize("limit", [{"max_size": 200_000}, {"max_entries": 9}])
@pytest.mark.parametrize("seed", range(3))
def test_no_sequence_of_publishes_exceeds_a_limit_by_more_than_one_entry(
    opening, draft, limit, seed
):
    rng = random.Random(seed)
    stores = [opening(**limit) for _ in range(3)]
    for number in range(90):
        store = rng.choice(stores)
        blobs = {"a": rng.randbytes(rng.randrange(1, SLACK - 4000)), "same": b"shared"}
        key = rng.choice([f"{number:064x}", f"{number % 7:064x}"])
        given = draft(key=key, blobs=blobs, cost_seconds=rng.choice([0.0, 1.0]))
        assert isinstance(store.publish(given), Published)
        store.settle()
        size, _ = on_disk(store)
        entries = sum(1 for path in (store.root / "v1/ac").rglob("*") if path.is_file())
        assert size <= limit.get("max_size", 1 << 30) + SLACK
        assert entries <= limit.get("max_entries", 1 << 30) + 1


@pytest.fixture(params=["as mounted", "noatime"])
def access_times(request, place):
    """Whether the file system notes when a file was read."""
    if request.param == "as mounted":
        yield
        return
    done = subprocess.run(["mount", "--bind", place, place], check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"can't bind-mount: {done.stderr.decode().strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,bind,noatime", place], check=True)
        yield
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.usefixtures("access_times")
def test_what_is_evicted_is_what_was_not_used_for_longest(opening, draft, monkeypatch):
    """A trace by Zipf's law, against an exact LRU with as many entries.

    Of an entry the file system learns at most once an hour that it was used; the counters, which
    lie elsewhere, know the rest.
    """
    rng = random.Random(5)
    names = [f"{number:064x}" for number in range(60)]
    weights = [1 / (rank + 1) for rank in range(len(names))]
    store = opening()
    exact = OrderedDict()
    most, hits, ideal, requests = 15, 0, 0, 500
    touched = []
    real = syscalls.touch

    def touching(name, at):
        touched.append(Path(f"/proc/self/fd/{at}").readlink() / name)
        real(name, at)

    monkeypatch.setattr(syscalls, "touch", touching)
    for name in rng.choices(names, weights, k=requests):
        if name in exact:
            ideal += 1
            exact.move_to_end(name)
        else:
            exact[name] = None
            if len(exact) > most:
                exact.popitem(last=False)
        found = store.candidates(name).manifests
        if found:
            hits += 1
            store.record_hit(found[0])
            continue
        store.publish(draft(key=name, cost_seconds=0.0, blobs={"a": name.encode()}))
        store.prune(PrunePolicy(max_entries=most))
    print(f"hits {hits}, of an exact LRU {ideal}, of {requests}")
    assert abs(hits - ideal) <= 0.01 * requests
    assert hits > 0
    assert touched
    assert not [path for path in touched if path.parts[-4:-3] == ("ac",)]
    store.flush()  # or it would be open until its hits are written
