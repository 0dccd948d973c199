"""Readers beside a writer, a pruner and a clear: never a wrong byte, never an error."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.thorough

WORKER = """if True:
    import json, os, random, sys, time
    from pathlib import Path
    from npugx_cache.config import Settings
    from npugx_cache.store import *
    from npugx_cache.store import NotStored, Miss, Draft, PrunePolicy
    role, root, seconds, seed = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    rng = random.Random(seed)
    store = open_store(Settings(cache_dir=root))
    KEYS = [f"{n:02x}" * 32 for n in range(24)]

    def blobs(key, variant):
        # All blobs of one result say the same variant: a mixture of two writers would show.
        text = f"{key} {variant} ".encode()
        return {"a": text * 20, "b": text * 300, "c": text}

    counts = dict(hits=0, misses=0, wrong=0, written=0, refused=0, cleaned=0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        key = rng.choice(KEYS)
        if role == "reader":
            for manifest in store.candidates(key).manifests:
                found = store.read(manifest, ["a", "b", "c"])
                if isinstance(found, Miss):
                    counts["misses"] += 1
                elif found == blobs(key, manifest.about["variant"]):
                    counts["hits"] += 1
                else:
                    counts["wrong"] += 1
                store.record_hit(manifest)
        elif role == "writer":
            variant = rng.randrange(3)
            answer = store.publish(Draft(
                key=key, identity="b" * 64, kind="graph", cost_seconds=0.0, factors=(),
                about={"variant": variant}, blobs=blobs(key, variant)))
            counts["refused" if isinstance(answer, NotStored) else "written"] += 1
            if isinstance(answer, NotStored):
                print(answer.reason, file=sys.stderr)
        elif role == "pruner":
            report = store.prune(PrunePolicy(max_entries=rng.randrange(4, 20)))
            counts["cleaned"] += report.entries
            time.sleep(0.02)
        else:
            counts["cleaned"] += store.prune(PrunePolicy(everything=True)).entries
            time.sleep(0.3)
    store.flush()
    print(json.dumps(counts))
"""
ROLES = [*["reader"] * 6, "writer", "writer", "pruner", "clear"]


def test_readers_writers_a_pruner_and_a_clear_never_see_or_make_a_wrong_byte(
    python, place, seconds
):
    workers = [
        python(WORKER, role, place / "cache", seconds, number) for number, role in enumerate(ROLES)
    ]
    total = {}
    for worker in workers:
        out, err = worker.communicate(timeout=seconds + 60)
        assert err == "", err[-2000:]
        for name, number in json.loads(out).items():
            total[name] = total.get(name, 0) + number
    print(total)
    assert total["wrong"] == 0
    assert total["refused"] == 0
    assert total["hits"] > 0
    assert total["written"] > 0
    assert total["cleaned"] > 0
