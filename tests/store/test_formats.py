"""Two releases with different formats in one root, each of them a process of its own."""

from __future__ import annotations

import os
import time

import pytest

from npugx_cache.store import PrunePolicy
from npugx_cache.store.format import layout

# The next release: the same code, whose folder is v2. What it does is printed.
NEXT = """if True:
    import sys
    from pathlib import Path
    from npugx_cache.store.format import layout
    layout.VERSION = "v2"
    from npugx_cache.config import Settings
    from npugx_cache.store import Draft, PrunePolicy, open_store
    store = open_store(Settings(cache_dir=Path(sys.argv[1])))
    given = Draft(key="ab" * 32, identity="b" * 64, kind="graph", cost_seconds=0.0, factors=(),
                  about={}, blobs={"x": b"of the next release"})
    store.publish(given)
    manifest, = store.candidates(given.key).manifests
    assert store.read(manifest, ["x"]) == given.blobs
    policy = eval(sys.argv[2])
    if policy is not None:
        promised = store.prune(policy, dry_run=True)
        report = store.prune(policy)
        assert promised.old_formats == report.old_formats
        print(*report.old_formats, promised.freed_bytes == report.freed_bytes)
"""
KEEP = PrunePolicy(max_size=1 << 30)


@pytest.fixture
def next_release(python, root):
    def run(policy=None):
        out, err = python(NEXT, root, policy).communicate(timeout=60)
        assert err == ""
        return out.split()

    return run


def unused_for(store, seconds):
    stamp = time.time() - seconds
    for path in [*(store.root / "v1/ac").rglob("*"), store.root / "v1/ac"]:
        os.utime(path, (stamp, stamp))


def test_both_releases_hit_in_one_root(store, publish, next_release):
    manifest = publish(store)
    next_release()
    assert (store.root / "v2/ac").is_dir()
    assert store.candidates(manifest.key).manifests == (manifest,)
    assert isinstance(store.read(manifest, ["program"]), dict)
    assert store.candidates("ab" * 32).manifests == ()


def test_an_older_format_stays_while_its_release_uses_it(store, publish, next_release):
    manifest = publish(store)
    unused_for(store, 20 * 86400)
    assert next_release(KEEP) == ["True"]
    assert store.candidates(manifest.key).manifests == (manifest,)


def test_a_hit_by_its_release_keeps_an_older_format(store, publish, next_release):
    manifest = publish(store)
    unused_for(store, 99 * 86400)
    store.record_hit(manifest)
    store.flush()
    assert next_release(KEEP) == ["True"]
    assert (store.root / "v1/ac").is_dir()


def test_who_names_entries_removes_no_older_format(store, publish, next_release):
    publish(store)
    unused_for(store, 99 * 86400)
    assert next_release(PrunePolicy(entries=frozenset())) == ["True"]
    assert (store.root / "v1/ac").is_dir()


@pytest.mark.parametrize(
    ("policy", "days"),
    [(KEEP, 31), (PrunePolicy(older_than=3600.0), 1), (PrunePolicy(everything=True), 0)],
)
def test_an_older_format_goes_when_it_is_aged_or_asked_for(
    store, publish, draft, next_release, policy, days
):
    publish(store)
    unused_for(store, days * 86400)
    assert next_release(policy) == ["v1", "True"]
    assert not (store.root / "v1").exists()
    # A process of the old release that is still running begins anew.
    assert store.candidates(f"{0:064x}").manifests == ()
    manifest = publish(store)
    assert store.candidates(manifest.key).manifests == (manifest,)


def test_a_later_format_and_what_is_no_format_are_never_touched(store, publish, next_release):
    next_release()
    for name in ("v0", "vx", "v01x", "older"):
        (store.root / name / "ac").mkdir(parents=True)
    publish(store)
    report = store.prune(PrunePolicy(everything=True))
    assert report.old_formats == ()
    assert (store.root / "v2/ac/ab").is_dir()
    assert all((store.root / name).is_dir() for name in ("v0", "vx", "v01x", "older"))


def test_what_an_older_format_links_to_stays(store, publish, next_release, tmp_path):
    publish(store)
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / ("a" * 64)).write_text("keep")
    folders = (store.root / "v1/cas" / f"{number:02x}" for number in range(256))
    next(each for each in folders if not each.exists()).symlink_to(outside)
    assert next_release(PrunePolicy(everything=True))[0] == "v1"
    assert (outside / ("a" * 64)).read_text() == "keep"


def test_the_version_of_the_layout_is_a_number():
    assert layout.VERSION.removeprefix("v").isdecimal()
