"""Entries that verify, decode and make no sense: a miss and the quarantine, no traceback (P2)."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import msgpack
import pytest
import torch

from npugx_cache import cache_compile, config, store
from npugx_cache.conditions.evaluate import Scope
from npugx_cache.entry import artifact, restore
from npugx_cache.errors import CorruptEntry
from npugx_cache.key.signature import Signature
from npugx_cache.portable import NotPortable

SCRIPT = Path(__file__).with_name("odd_entry.py")
ODD = [None, True, -1, 0, 1 << 40, 1e308, "", "torch.nn", b"", [], {}, [[]], ["id", "os.system"]]
MUTANTS = 400


KNOWN = "transformers.utils.output_capturing.maybe_install_capturing_hooks"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.names = ["u", "v"]

    def forward(self, x, k=1.5, options=None):
        y = self.linear(x) * k + torch.tensor([1.0, 2, 3, 4])
        return y + len(self.names), {"n": x.shape[0]}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The blobs of an entry, and a call that its conditions accept."""
    folder = tmp_path_factory.mktemp("odd")
    folder.chmod(0o700)
    net = Net().eval()
    cached = cache_compile(net.forward, cache_dir=folder, dynamic=True)
    cached(torch.ones(3, 4))
    opened = store.open_store(config.load(cache_dir=folder))
    ((manifest, *_),) = ((row.manifest,) for row in opened.listing())
    blobs = opened.read(manifest, [ref.name for ref in manifest.blobs])
    scope = Scope(cached._locals((net, torch.ones(5, 4)), {}), Net.forward.__globals__)
    return blobs, scope, Net.forward


def paths(data, path=()):
    if path:
        yield path
    if isinstance(data, (dict, list)):
        items = data.items() if isinstance(data, dict) else enumerate(data)
        for name, inner in items:
            yield from paths(inner, (*path, name))


def mutant(data, choose):
    made = copy.deepcopy(data)
    for _ in range(choose.choice([1, 1, 2])):
        every = list(paths(made))
        *above, last = choose.choice(every)
        place = made
        for name in above:
            place = place[name]
        what = choose.random()
        if what < 0.6:
            place[last] = choose.choice(ODD)
        elif what < 0.8 or isinstance(place, dict):
            del place[last]
        else:
            place.insert(last, choose.choice(ODD))
    return msgpack.packb(made, use_bin_type=True)


def mutants(stored, part):
    blobs, plain = stored, msgpack.unpackb(stored[part], raw=False)
    for seed in range(MUTANTS):
        yield {**blobs, part: mutant(plain, random.Random(seed))}


def test_odd_conditions_hold_or_are_refused_with_a_reason_or_are_corrupt(stored):
    blobs, scope, _ = stored
    corrupt = 0
    with torch.no_grad():
        for odd in mutants(blobs, artifact.CONDITIONS):
            try:
                candidate = restore.candidate(odd)
                code = Net.forward.__code__
                assert candidate.holds(scope) or restore.failures(candidate, scope, code)
            except CorruptEntry:
                corrupt += 1
    assert corrupt > MUTANTS // 4


def test_odd_bindings_bind_or_are_corrupt(stored):
    blobs, _, function = stored
    corrupt = 0
    for odd in mutants(blobs, artifact.BINDINGS):
        candidate = restore.candidate(odd)
        try:
            restore.bind(
                odd,
                function,
                entry=None,
                conditions=candidate,
                switches=(),
                captures=None,
                demanded=candidate.conditions,
            )
        except (CorruptEntry, NotPortable):
            corrupt += 1
    assert corrupt > MUTANTS // 4


@pytest.mark.parametrize("path", ["a..b", "", ".a", "a.", "a.1", "a b", 7, None])
def test_what_is_no_path_to_a_tensor_is_corrupt(stored, path):
    plain = msgpack.unpackb(stored[0][artifact.BINDINGS], raw=False)
    for part in (["a.b", path], [path]):
        plain["parts"] = [["x", "a.b"], part]
        with pytest.raises(CorruptEntry, match="is no path to a tensor"):
            artifact.Bindings.unpack(msgpack.packb(plain, use_bin_type=True))


@pytest.mark.thorough
def test_a_worker_misses_once_and_the_entry_goes_to_quarantine(surroundings):
    row = surroundings.run(SCRIPT)
    assert row["right"]
    assert row["errors"] == []
    assert row["counts"] == [0, 1, 0, 1]  # one compile for 20 calls
    assert row["quarantined"] == 1
    assert row["second"] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("set_up", "quarantined"),
    [
        (b"\xc1", 1),
        (msgpack.packb([KNOWN, "0"]), 1),
        (msgpack.packb([KNOWN, 10_000]), 1),
        (msgpack.packb([KNOWN, -1]), 1),
        (msgpack.packb(["os.system", 0]), 0),
        (msgpack.packb([KNOWN, 0]), 0),  # what is there is no model
    ],
)
def test_a_set_up_that_makes_no_sense_calls_nothing(tmp_path, set_up, quarantined):
    tmp_path.chmod(0o700)
    net, x = Net().eval(), torch.ones(3, 4)
    expected = cache_compile(net.forward, cache_dir=tmp_path)(x)
    opened = store.open_store(config.load(cache_dir=tmp_path))
    ((manifest, *_),) = ((row.manifest,) for row in opened.listing())
    conditions = opened.read(manifest, [artifact.CONDITIONS])
    cached = cache_compile(net.forward, cache_dir=tmp_path)
    calls = Signature(cached._locals((net, x), {})).types
    draft = store.Draft(
        key=manifest.key,
        identity=manifest.identity,
        kind="set-up",
        cost_seconds=0.0,
        factors=manifest.factors,
        about={**manifest.about, "reason": "odd", "calls": calls},
        blobs={**conditions, artifact.SET_UP: set_up},
    )
    assert isinstance(opened.publish(draft), store.Published)
    got, info = cached(x), cached.cache_info()
    assert torch.equal(got[0], expected[0])
    assert (info.hits, info.misses, info.bypasses) == (1, 0, 0)
    kinds = [row.manifest.kind for row in opened.listing()]
    assert kinds.count("set-up") == 1 - quarantined
