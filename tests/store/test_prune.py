from __future__ import annotations

import os
import random
import threading
import time
from typing import get_args

import pytest

from npugx_cache.config import EvictionPolicy
from npugx_cache.store import PrunePolicy
from npugx_cache.store.io import syscalls


def age(path, seconds):
    stamp = time.time() - seconds
    os.utime(path, (stamp, stamp), follow_symlinks=False)


def entry_path(store, manifest):
    return store.root / "v1/ac" / manifest.key[:2] / manifest.key / manifest.entry


def files(store, part):
    return sorted(p.name for p in (store.root / "v1" / part).rglob("*") if p.is_file())


def stored(store):
    parts = [p for part in ("ac", "cas") for p in (store.root / "v1" / part).rglob("*")]
    return sum(p.stat().st_size for p in parts if p.is_file())


@pytest.fixture
def five(store, publish):
    """Five entries of about 10 kB, the first the least recently used."""
    manifests = []
    for number in range(5):
        manifests.append(publish(store, number, blobs={"a": os.urandom(10_000)}))
        age(entry_path(store, manifests[-1]), 86400 * (5 - number))
    return manifests


def keys(store):
    return [item.manifest.key for item in store.listing()]


def test_a_size_limit_evicts_the_least_recently_used_first(store, five):
    report = store.prune(PrunePolicy(max_size=25_000))
    assert [manifest.key for manifest in report.removed] == [m.key for m in five[:3]]
    assert keys(store) == [m.key for m in five[3:]]
    assert (report.entries, report.blobs, report.kept_entries) == (3, 3, 2)
    assert report.kept_bytes == stored(store) <= 25_000
    assert report.stopped is None


def test_an_age_limit_evicts_what_was_not_used_since(store, five):
    report = store.prune(PrunePolicy(older_than=86400 * 2.5))
    assert keys(store) == [m.key for m in five[3:]]
    assert report.freed_bytes > 30_000


def test_a_hit_that_only_the_counters_know_keeps_an_entry(store, five, open_at):
    store.record_hit(five[0])
    store.flush()
    age(entry_path(store, five[0]), 86400 * 9)
    open_at().prune(PrunePolicy(older_than=86400 * 1.5))
    assert keys(store) == [five[0].key, five[4].key]


def test_both_limits_together_hold_both(store, five):
    store.prune(PrunePolicy(older_than=86400 * 4.5, max_size=35_000))
    assert keys(store) == [m.key for m in five[2:]]


def test_everything_leaves_an_empty_usable_store(store, five, publish):
    (store.root / "v1/quarantine" / f"{'a' * 64}.{'b' * 16}").write_bytes(b"x")
    report = store.prune(PrunePolicy(everything=True))
    assert report.entries == 5
    assert report.kept_entries == report.kept_bytes == 0
    for part in ("ac", "cas", "fn", "tmp", "quarantine"):
        assert list((store.root / "v1" / part).iterdir()) == []
    publish(store, 9)
    assert len(keys(store)) == 1


@pytest.mark.parametrize(
    "policy",
    [PrunePolicy(max_size=25_000), PrunePolicy(older_than=1), PrunePolicy(everything=True)],
)
def test_a_dry_run_says_what_would_go_and_changes_nothing(store, five, policy):
    before = {p: p.lstat().st_mtime_ns for p in store.root.rglob("*")}
    promised = store.prune(policy, dry_run=True)
    assert {p: p.lstat().st_mtime_ns for p in store.root.rglob("*")} == before
    done = store.prune(policy)
    assert promised.dry_run
    assert promised.removed == done.removed
    assert promised.blobs == done.blobs
    assert promised.freed_bytes == done.freed_bytes
    assert promised.kept_bytes == done.kept_bytes


def test_a_blob_that_a_kept_entry_names_stays(store, publish):
    shared = os.urandom(5000)
    old = publish(store, 1, blobs={"a": shared, "b": os.urandom(10)})
    new = publish(store, 2, blobs={"a": shared})
    age(entry_path(store, old), 9999)
    report = store.prune(PrunePolicy(older_than=5000))
    assert report.blobs == 1
    assert store.read(new, ["a"])["a"] == shared


def test_an_unnamed_blob_goes_after_an_hour_of_grace(store, five):
    entry_path(store, five[0]).unlink()
    entry_path(store, five[1]).unlink()
    digest = five[0].blobs[0].sha256
    age(store.root / "v1/cas" / digest[:2] / digest, 4000)
    report = store.prune(PrunePolicy(max_size=1 << 30))
    assert report.blobs == 1
    assert digest not in files(store, "cas")
    assert five[1].blobs[0].sha256 in files(store, "cas")


def test_an_unnamed_blob_that_was_touched_within_the_hour_stays(store, five):
    """A publisher that finds a blob touches it. The index does not see that, as no name changes."""
    entry_path(store, five[0]).unlink()
    digest = five[0].blobs[0].sha256
    path = store.root / "v1/cas" / digest[:2] / digest
    age(path, 4000)
    age(path.parent, 100)  # an index does not rely on a folder that has just changed
    assert store.prune(PrunePolicy(max_size=1 << 30), dry_run=True).blobs == 1  # now in the index
    age(path, 60)
    assert store.prune(PrunePolicy(max_size=1 << 30)).blobs == 0
    assert path.exists()


def test_blobs_stay_while_a_manifest_can_not_be_read(store, five):
    entry_path(store, five[0]).chmod(0o666)
    digest = five[0].blobs[0].sha256
    age(store.root / "v1/cas" / digest[:2] / digest, 9999)
    store.prune(PrunePolicy(max_size=1 << 30))
    assert digest in files(store, "cas")


def test_a_damaged_entry_goes_to_quarantine_so_that_the_next_time_its_blobs_go(store, five):
    entry_path(store, five[0]).write_bytes(b"nonsense")
    digest = five[0].blobs[0].sha256
    age(store.root / "v1/cas" / digest[:2] / digest, 9999)
    store.prune(PrunePolicy(max_size=1 << 30))
    assert digest in files(store, "cas")
    assert not entry_path(store, five[0]).exists()
    assert any(name.startswith(five[0].entry) for name in files(store, "quarantine"))
    store.prune(PrunePolicy(max_size=1 << 30))
    assert digest not in files(store, "cas")


def test_leftovers_are_swept_by_their_age(store, publish):
    publish(store)
    base = store.root / "v1"
    old = {
        base / "tmp" / f"123-{'a' * 32}": 4000,
        base / "quarantine" / f"{'b' * 64}.{'c' * 16}": 8 * 86400,
        base / "quarantine" / f"{'b' * 64}.{'c' * 16}.reason": 8 * 86400,
        base / "locks" / f"{'d' * 64}.lock": 2 * 86400,
    }
    young = {
        base / "tmp" / f"124-{'a' * 32}": 100,
        base / "quarantine" / f"{'e' * 64}.{'c' * 16}": 6 * 86400,
        base / "locks" / f"{'e' * 64}.lock": 100,
    }
    for path, seconds in (old | young).items():
        path.write_bytes(b"x")
        age(path, seconds)
    stale = base / "fn" / ("f" * 32)
    stale.mkdir()
    (stale / ("9" * 64)).touch()
    empty = base / "ac/77" / ("7" * 64)
    empty.mkdir(parents=True)
    report = store.prune(PrunePolicy(max_size=1 << 30))
    assert not [path for path in [*old, stale, empty.parent] if path.exists()]
    assert all(path.exists() for path in young)
    assert report.swept == 5
    assert len(files(store, "fn")) == 1


def test_nothing_is_deleted_that_the_store_did_not_name(store, publish, tmp_path):
    publish(store)
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / ("a" * 64)).write_text("keep")
    base = store.root / "v1"
    (base / "cas/aa").symlink_to(outside)
    foreign = [
        store.root / "notes.txt",
        base / "notes.txt",
        base / "tmp/notes.txt",
        base / "cas/README",
        base / "ac/README",
        base / "ac/00" / ("0" * 64) / "README",
        base / "locks/notes",
        base / "quarantine/notes",
        outside / ("a" * 64),
    ]
    for path in foreign[:-1]:
        path.write_text("keep")
        age(path, 99 * 86400)
    age(foreign[-1], 99 * 86400)
    store.prune(PrunePolicy(everything=True))
    assert [path for path in foreign if not path.exists()] == []


def test_one_cleaner_at_a_time(store, five, python):
    code = """if True:
        import sys
        from pathlib import Path
        from npugx_cache.config import Settings
        from npugx_cache.store import open_store
        store = open_store(Settings(cache_dir=Path(sys.argv[1])))
        with store.lock('c1ea', wait=0):
            print('held', flush=True)
            sys.stdin.readline()
    """
    holder = python(code, store.root)
    assert holder.stdout.readline().strip() == "held"
    assert "another prune" in store.prune(PrunePolicy(everything=True)).stopped
    assert len(keys(store)) == 5


def test_everything_takes_what_can_not_be_read_with_it(store, five):
    entry_path(store, five[0]).chmod(0o666)
    entry_path(store, five[1]).write_bytes(b"nonsense")
    entry_path(store, five[2]).unlink()
    entry_path(store, five[2]).symlink_to("/etc/passwd")
    store.prune(PrunePolicy(everything=True), dry_run=True)
    assert len(list(store.listing())) == 5
    report = store.prune(PrunePolicy(everything=True))
    assert report.entries == 2
    assert list(store.listing()) == []
    assert files(store, "ac") == files(store, "cas") == files(store, "quarantine") == []


def test_an_entry_published_again_since_the_scan_stays(store, five):
    def republish(done, total):
        os.utime(entry_path(store, five[4]))

    report = store.prune(PrunePolicy(older_than=1), progress=republish)
    assert report.entries == 4
    assert keys(store) == [five[4].key]


def test_progress_is_told_entry_by_entry(store, five):
    seen = []
    store.prune(PrunePolicy(everything=True), progress=lambda *step: seen.append(step))
    assert seen == [(number, 5) for number in range(1, 6)]


def test_publishing_keeps_the_store_within_its_size(open_at, publish):
    store = open_at(max_size=50_000)
    for number in range(20):
        publish(store, number, blobs={"a": os.urandom(10_000)})
        store.settle()
        assert stored(store) <= 50_000
    assert f"{19:064x}" in keys(store)
    assert f"{0:064x}" not in keys(store)


@pytest.mark.thorough
def test_an_entry_larger_than_the_limit_is_still_stored_alone(open_at, publish):
    store = open_at(max_size=5_000)
    publish(store, 1, blobs={"a": os.urandom(100)})
    manifest = publish(store, 2, blobs={"a": os.urandom(10_000)})
    store.settle()
    assert keys(store) == [manifest.key]


def test_a_reader_beside_a_cleaner_sees_whole_entries_or_none(store, draft, python):
    code = """if True:
        import sys, threading
        from pathlib import Path
        from npugx_cache.config import Settings
        from npugx_cache.store import PrunePolicy, open_store
        store = open_store(Settings(cache_dir=Path(sys.argv[1])))
        told = threading.Thread(target=sys.stdin.readline, daemon=True)
        told.start()
        while told.is_alive():
            store.prune(PrunePolicy(everything=True))
            print(flush=True)
    """
    cleaner = python(code, store.root)
    cleaner.stdout.readline()
    hits = 0
    while hits < 50:
        given = draft(blobs={"a": b"same", "b": b"z" * 3000})
        store.publish(given)
        for manifest in store.candidates(given.key).manifests:
            answer = store.read(manifest, given.blobs)
            if isinstance(answer, dict):
                assert answer == given.blobs
                hits += 1
    cleaned, err = cleaner.communicate("\n")
    assert (cleaned.strip(), err) == ("", "")
    assert cleaned.count("\n") > 1


def test_a_count_limit_evicts_the_least_recently_used_first(store, five):
    report = store.prune(PrunePolicy(max_entries=2))
    assert (report.entries, report.kept_entries) == (3, 2)
    assert keys(store) == [f"{number:064x}" for number in (3, 4)]


def test_by_cost_an_expensive_entry_outlives_younger_cheap_ones(store, publish):
    hour = publish(store, 0, cost_seconds=3600.0)
    age_of(store, hour, 3600)
    for number in range(1, 5):
        age_of(store, publish(store, number, cost_seconds=1.0), 10)
    store.prune(PrunePolicy(max_entries=1, weigh="cost"))
    assert keys(store) == [hour.key]


def test_by_cost_of_equal_cost_and_age_the_large_goes_first(store, publish):
    small = publish(store, 0, blobs={"a": os.urandom(100)})
    large = publish(store, 1, blobs={"a": os.urandom(100_000)})
    for manifest in (small, large):
        age_of(store, manifest, 100)
    store.prune(PrunePolicy(max_entries=1, weigh="cost"))
    assert keys(store) == [small.key]


def test_by_cost_nothing_is_kept_for_ever(store, publish):
    dear = publish(store, 0, cost_seconds=100.0)
    age_of(store, dear, 200 * 86400)
    cheap = publish(store, 1, cost_seconds=10.0)
    age_of(store, cheap, 3600)
    store.prune(PrunePolicy(max_entries=1, weigh="cost"))
    assert keys(store) == [cheap.key]


def age_of(store, manifest, seconds):
    path = store.root / "v1/ac" / manifest.key[:2] / manifest.key / manifest.entry
    stamp = time.time() - seconds
    os.utime(path, (stamp, stamp))


@pytest.mark.parametrize("limit", [{"max_entries": 3}, {"max_size": 35_000}])
def test_publishing_keeps_to_every_limit_of_the_settings(open_at, publish, limit):
    store = open_at(**limit)
    for number in range(10):
        publish(store, number, blobs={"a": os.urandom(10_000)})
        store.settle()
    assert len(keys(store)) <= 3
    assert f"{9:064x}" in keys(store)


def test_publishing_drops_what_was_not_used_for_long(open_at, publish):
    old = publish(open_at(), 0)
    store = open_at(max_age=3600.0)
    age_of(store, old, 7200)
    publish(store, 1)
    store.settle()
    assert keys(store) == [f"{1:064x}"]


def test_a_publisher_does_not_wait_for_the_cleaning_of_a_large_store(open_at, publish, monkeypatch):
    store = open_at(max_entries=2)
    published, publisher, remove = threading.Event(), threading.current_thread(), syscalls.unlink
    cleaned, waited_for = [], []

    def unlink(path, at=None):
        """What the cleaning removes first stays until all is published."""
        if not cleaned:
            cleaned.append(threading.current_thread())
            waited_for.append(cleaned != [publisher] and not published.wait(60))
        remove(path, at)

    for number in range(2):
        publish(store, number)
    store.settle()
    monkeypatch.setattr(syscalls, "unlink", unlink)
    for number in range(2, 5):
        publish(store, number)
    published.set()
    store.settle()
    assert publisher not in cleaned
    assert waited_for == [False]
    assert len(keys(store)) <= 2


def test_settings_name_the_limits_and_refuse_nonsense():
    from npugx_cache.config import load
    from npugx_cache.errors import OptionError

    environ = {
        "NPUGX_CACHE_MAX_ENTRIES": "100",
        "NPUGX_CACHE_MAX_AGE": "30d",
        "NPUGX_CACHE_POLICY": "cost",
    }
    settings = load(environ=environ)
    assert (settings.max_entries, settings.max_age, settings.policy) == (100, 2592000.0, "cost")
    for name, value in (("MAX_ENTRIES", "0"), ("MAX_AGE", "soon"), ("POLICY", "random")):
        with pytest.raises(OptionError, match=name):
            load(environ={f"NPUGX_CACHE_{name}": value})


@pytest.mark.parametrize("seed", range(12))
def test_random_stores_are_pruned_as_promised_and_lose_no_blob_of_a_kept_entry(
    store, publish, seed
):
    rng = random.Random(seed)
    pool = [rng.randbytes(rng.randrange(1, 3000)) for _ in range(12)]
    manifests = []
    for number in range(10):
        blobs = {f"b{at}": rng.choice(pool) for at in range(rng.randrange(4))}
        manifests.append(publish(store, number, blobs=blobs, cost_seconds=rng.random() * 9))
        age(entry_path(store, manifests[-1]), rng.randrange(100_000))
    for name in rng.sample(files(store, "cas"), rng.randrange(3)):
        (store.root / "v1/cas" / name[:2] / name).unlink()
    present = set(files(store, "cas"))
    policy = PrunePolicy(
        max_size=rng.choice([None, 4000, 12_000]),
        max_entries=rng.choice([None, 3, 6]),
        older_than=rng.choice([None, 30_000.0, 70_000.0]),
        weigh=rng.choice(get_args(EvictionPolicy)),
    )
    before = stored(store)
    promised = store.prune(policy, dry_run=True)
    done = store.prune(policy)
    assert (promised.removed, promised.blobs) == (done.removed, done.blobs)
    assert (promised.freed_bytes, promised.kept_bytes) == (done.freed_bytes, done.kept_bytes)
    assert before - done.freed_bytes == stored(store) == done.kept_bytes
    kept = [item.manifest for item in store.listing()]
    assert done.kept_entries == len(kept)
    named = {ref.sha256 for manifest in kept for ref in manifest.blobs}
    assert set(files(store, "cas")) == named & present
    assert policy.max_size is None or done.kept_bytes <= policy.max_size
    assert policy.max_entries is None or len(kept) <= policy.max_entries


def test_named_entries_go_and_no_other(store, five):
    named = frozenset({five[1].entry, five[4].entry, "0" * 64})
    policy = PrunePolicy(entries=named)
    promised = store.prune(policy, dry_run=True)
    assert len(keys(store)) == 5
    done = store.prune(policy)
    assert {gone.entry for gone in done.removed} == {five[1].entry, five[4].entry}
    assert promised.removed == done.removed
    assert promised.freed_bytes == done.freed_bytes
    assert keys(store) == [five[at].key for at in (0, 2, 3)]
    assert store.prune(PrunePolicy(entries=frozenset())).entries == 0
