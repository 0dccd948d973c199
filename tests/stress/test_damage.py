"""10,000 random bit flips, truncations, zero-fills and swaps: none is served, all are noticed."""

from __future__ import annotations

import random

import pytest

from npugx_cache.store import Miss

pytestmark = pytest.mark.thorough

ROUNDS = 10_000


@pytest.fixture(params=["private", "signed"])
def store(request, opening, tmp_path):
    key = tmp_path / "key"
    key.write_text("5a" * 32)
    key.chmod(0o600)
    return opening(trust=request.param, key_file=key)


def entry_files(store, manifest):
    yield store.root / "v1/ac" / manifest.key[:2] / manifest.key / manifest.entry
    for ref in manifest.blobs:
        yield store.root / "v1/cas" / ref.sha256[:2] / ref.sha256


def damage(rng, path, others):
    data = bytearray(path.read_bytes())
    kind = rng.choice(["flip", "flip", "flip", "cut", "zero", "grow", "swap"])
    if kind == "flip":
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[rng.randrange(len(data)) :]
    elif kind == "zero":
        at = rng.randrange(len(data))
        before = bytes(data)
        data[at:] = bytes(len(data) - at)
        if bytes(data) == before:
            data[at] ^= 1
    elif kind == "grow":
        data += bytes([rng.randrange(256)])
    else:
        data = bytearray(rng.choice(others).read_bytes())
    path.write_bytes(data)


def test_no_damage_is_served_and_all_of_it_is_noticed(store, draft):
    rng = random.Random(20)
    drafts = [
        draft(key=f"{n:064x}", blobs={"a": b"first %d" % n * 50, "b": rng.randbytes(700 + n)})
        for n in range(3)
    ]
    published = [store.publish(each).manifest for each in drafts]
    # By content: a blob has as many copies as entries that name it.
    good = {path: path.read_bytes() for m in published for path in entry_files(store, m)}
    modes = {path: path.stat().st_mode for path in good}
    noticed = 0
    for round_ in range(ROUNDS // 2):
        given, manifest = drafts[round_ % 3], published[round_ % 3]
        path = rng.choice(list(entry_files(store, manifest)))
        others = [other for other in good if good[other] != good[path]]
        damage(rng, path, others)
        found = store.candidates(given.key)
        answers = [store.read(each, given.blobs) for each in found.manifests]
        assert all(isinstance(answer, Miss) for answer in answers), path
        noticed += bool(found.missing_reason or answers)
        path.write_bytes(good[path])
        path.chmod(modes[path] & 0o777)
    assert noticed == ROUNDS // 2
    for given, manifest in zip(drafts, published, strict=True):
        assert store.read(manifest, given.blobs) == given.blobs
