"""Entries made on one device and used on the other, in another process and in the same one."""

import itertools
import os
import threading
from pathlib import Path

import pytest

if os.environ.get("NPUGX_TEST_DEVICE") != "npu":
    pytest.skip("needs the simulated NPU: tests/npu_sim/run", allow_module_level=True)

import places
import torch

from npugx_cache import cache_compile, version
from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.evaluate import Scope

SCRIPT = Path(places.__file__)
KEPT = ("PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD")
KEEP = {name: os.environ[name] for name in KEPT if name in os.environ}
OLD = {
    "a default device": "torch before 2.12 traces no factory under a default device with an index",
}
if version.minor_version(torch.__version__) >= (2, 12):
    OLD = {}
ROWS = {**dict.fromkeys([*places.HITS, "a default device"], "hit"), **dict.fromkeys(places.RIGHT)}


def both(surroundings):
    """Compiled where npu:0 is the current device, then called where npu:1 is and sets have another
    order; and each hit again, compared with what is compiled there."""
    here, there = {**KEEP, "PYTHONHASHSEED": "1"}, {**KEEP, "PYTHONHASHSEED": "2"}
    on_0 = surroundings.run("-W", "ignore", SCRIPT, 0, 2, **here)
    on_1 = surroundings.run("-W", "ignore", SCRIPT, 1, 2, **there)
    again = {**there, "NPUGX_CACHE_VERIFY": "recompile"}
    return on_0, on_1, surroundings.run("-W", "ignore", SCRIPT, 1, 1, **again)


@pytest.mark.parametrize("name", ROWS)
def test_compiled_on_one_device_and_called_on_another(once, name):
    if name in OLD:
        assert all(run[name]["right"] for run in once("places", both))
        pytest.skip(OLD[name])
    cold, warm, verified = (run[name] for run in once("places", both))
    assert cold == {**cold, "hits": 0, "misses": 1, "bypasses": 0, "right": True}
    hits = int(ROWS[name] == "hit")
    assert warm == {**warm, "hits": hits, "misses": 1 - hits, "bypasses": 0, "right": True}
    assert verified["right"]
    assert warm["captured"] == cold["captured"] or not hits


@pytest.mark.parametrize("name", places.ELSEWHERE)
def test_what_makes_another_device_current_runs_eagerly(once, name):
    _, *elsewhere = (run[name] for run in once("places", both))
    for found in elsewhere:
        assert found["right"]
        assert found["hits"] == found["misses"] == 0


def test_the_restored_need_no_compiler(once):
    _, warm, _ = once("places", both)
    first = next(iter(warm))
    assert not warm[first]["compiler"]  # a later row's custom operator loads it


@pytest.fixture(autouse=True)
def device():
    torch.npu.set_device(0)
    yield
    torch.npu.set_device(0)


def on(index):
    return torch.arange(8.0).view(2, 4).to(f"npu:{index}")


def shifted(x):
    return x + torch.arange(4, device=x.device) + torch.ones(4, device="npu")


def check(cached, x):
    want = shifted(x)
    got = cached(x)
    assert got.device == want.device == x.device
    assert torch.equal(got.cpu(), want.cpu())


def counts(cached):
    info = cached.cache_info()
    return info.hits, info.misses, info.bypasses


@pytest.mark.parametrize("guards", ["full", "inputs_unsafe"])
def test_the_current_device_changes_between_calls(tmp_path, guards):
    cached = cache_compile(shifted, cache_dir=tmp_path, guards=guards)
    for _ in range(3):
        check(cached, on(0))
    assert counts(cached) == (0, 1, 0)
    for _ in range(3):
        torch.npu.set_device(1)
        check(cached, on(1))
        with torch.npu.device(0):
            check(cached, on(0))
    assert counts(cached) == (1, 1, 0)  # one entry, bound to each device
    assert len(cached.cache_info().graphs) == 2
    assert len({graph.entry for graph in cached.cache_info().graphs}) == 1


def made_there(x):
    y = torch.zeros(4, device="npu")
    return y + 1, torch.ones(2, device=y.device), x * 2


def test_inputs_elsewhere_have_an_entry_for_each_current_device(tmp_path):
    cached = cache_compile(made_there, cache_dir=tmp_path)
    for current in (0, 1, 0, 1):
        with torch.npu.device(current):
            want, got = made_there(on(1)), cached(on(1))
        assert [each.device for each in got] == [each.device for each in want]
    assert counts(cached) == (0, 2, 0)
    assert "is not the current device, which it must be" in str(cached.explain())


def test_each_thread_has_its_current_device(tmp_path):
    cached = cache_compile(shifted, cache_dir=tmp_path)
    faults = []

    def work(index):
        try:
            torch.npu.set_device(index)
            for _ in range(5):
                check(cached, on(index))
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(n % 2,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    hits, misses, bypasses = counts(cached)
    # The thread on the other device finds the entry, or has begun to compile as well.
    assert (hits + misses, misses > 0, bypasses) == (2, True, 0)


def test_managers_and_the_full_check_agree_on_devices(tmp_path):
    cached = cache_compile(shifted, cache_dir=tmp_path)
    for _ in range(4):
        check(cached, on(0))
    (known,) = cached._state.specialisations
    checker = known.conditions
    assert checker._native is not None
    for current, index in itertools.product((0, 1), (0, 1)):
        scope = Scope({"x": on(index)}, shifted.__globals__)
        with torch.npu.device(current), torch.no_grad():
            quickly = checker.holds_quickly(scope)
            assert quickly == Checker(checker.conditions).holds(scope) == (current == index == 0)
