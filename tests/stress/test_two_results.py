"""Writers with different results under one key: a reader gets one of them, never a mixture."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.thorough

WORKER = """if True:
    import json, random, sys, time
    from pathlib import Path
    from npugx_cache.config import Settings
    from npugx_cache.store import Draft, Miss, NotStored, PrunePolicy, open_store
    role, root, seconds, seed = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    store = open_store(Settings(cache_dir=root))
    rng = random.Random(seed)
    NAMES = ["a", "b", "c"]

    def result(variant):
        return {name: f"{variant} {name} ".encode() * 400 for name in NAMES}

    counts = dict(reads=0, misses=0, wrong=0, written=0, refused=0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if role == "writer":
            variant = f"{seed} {rng.randrange(6)}"
            answer = store.publish(Draft(
                key="ab" * 32, identity="b" * 64, kind="graph", cost_seconds=0.0, factors=(),
                about={"variant": variant}, blobs=result(variant)))
            counts["refused" if isinstance(answer, NotStored) else "written"] += 1
            if rng.random() < 0.1:
                store.prune(PrunePolicy(max_entries=2))
            continue
        for manifest in store.candidates("ab" * 32).manifests:
            found = store.read(manifest, NAMES)
            if isinstance(found, Miss):
                counts["misses"] += 1
            else:
                counts["reads"] += 1
                counts["wrong"] += found != result(manifest.about["variant"])
    print(json.dumps(counts))
"""


def test_readers_of_one_key_never_mix_the_results_of_two_writers(python, place, seconds):
    roles = ["writer", "writer", "reader", "reader"]
    workers = [
        python(WORKER, role, place / "cache", seconds, number) for number, role in enumerate(roles)
    ]
    total = {}
    for worker in workers:
        out, err = worker.communicate(timeout=seconds + 60)
        assert err == "", err[-2000:]
        for name, number in json.loads(out).items():
            total[name] = total.get(name, 0) + number
    print(total)
    assert total["wrong"] == total["refused"] == 0
    assert total["reads"] > 100
    assert total["written"] > 10
