"""The limits hold for all processes together: what one publishes, the others count."""

from __future__ import annotations

import os

import pytest

from npugx_cache.store.upkeep import limits
from npugx_cache.store.upkeep.limits import Total, add_to_estimate, replace_estimate, total


def test_what_nobody_has_looked_at_is_unknown(store):
    assert add_to_estimate(store.folder, 10) is None
    assert not (store.root / "v1/size").exists()


def test_every_publish_counts_from_the_last_look_on(store):
    replace_estimate(store.folder, Total(1000, 5), None)
    assert add_to_estimate(store.folder, 10) == Total(1010, 6)
    assert add_to_estimate(store.folder, 20) == Total(1030, 7)
    replace_estimate(store.folder, Total(500, 2), total(store.folder))
    assert total(store.folder) == Total(500, 2)


def test_what_is_published_during_a_look_is_not_lost(store):
    replace_estimate(store.folder, Total(1000, 5), None)
    before = total(store.folder)
    add_to_estimate(store.folder, 70)
    replace_estimate(store.folder, Total(400, 2), before)
    assert total(store.folder) == Total(470, 3)


@pytest.mark.parametrize("garbage", [b"", b"x", b"x" * 16, bytes(32)])
def test_an_odd_or_old_file_means_that_somebody_has_to_look(store, garbage):
    replace_estimate(store.folder, Total(1000, 5), None)
    (store.root / "v1/size").write_bytes(garbage)
    assert total(store.folder) is None


def test_an_old_look_counts_no_more(store, monkeypatch):
    replace_estimate(store.folder, Total(1000, 5), None)
    monkeypatch.setattr(limits, "_OLD", 0.0)
    assert total(store.folder) is None


def test_a_link_in_its_place_is_not_written_through(store, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    (store.root / "v1/size").symlink_to(victim)
    assert add_to_estimate(store.folder, 10) is None
    assert victim.read_bytes() == b""


def test_several_publishers_keep_to_one_limit(open_at, publish):
    # Each by itself is far from the limit; the memory of one is not that of another.
    stores = [open_at(max_size=60_000) for _ in range(4)]
    for number in range(32):
        store = stores[number % 4]
        publish(store, number, blobs={"a": os.urandom(5_000)})
        store.settle()
        parts = [p for part in ("ac", "cas") for p in (store.root / "v1" / part).rglob("*")]
        assert sum(p.stat().st_size for p in parts if p.is_file()) <= 60_000 + 6_000
