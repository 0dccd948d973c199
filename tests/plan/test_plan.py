"""Capture plans: recorded beside an entry, captured again before the first call of a restart."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npugx_cache.config import Settings
from npugx_cache.store import open_store

WORKER = Path(__file__).parent / "worker.py"
DEVICE = os.environ.get("NPUGX_TEST_DEVICE", "cpu")
PASSED_ON = ("PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD")
KEPT = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
LAST = "5, float32[5, 4], 2"

pytestmark = pytest.mark.thorough


def work(surroundings, how, folder):
    return surroundings.run("-W", "ignore", WORKER, DEVICE, how, folder, **KEPT)


def shown(surroundings, folder, entry, form="json"):
    command = [sys.executable, "-m", "npugx_cache.cli", "show", entry, "--dir", folder]
    command += ["--format", form]
    environment = surroundings.environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def runs(once):
    def make(surroundings):
        folder = surroundings.folder / "plans"
        found = {how: work(surroundings, how, folder) for how in ("call", "warm", "argument")}
        found["folder"] = str(folder)
        return found

    return once("plan", make)


def test_every_worker_gets_eagers_results(runs):
    for how in ("call", "warm", "argument"):
        assert runs[how]["equal"]
    assert runs["call"]["before"] == []
    assert runs["call"]["misses"] == 2


@pytest.mark.parametrize("how", ["warm", "argument"])
def test_a_restarted_worker_captures_before_its_first_call_the_most_used_first(runs, how):
    found = runs[how]
    sizes = [shape for shape, _ in runs["call"]["after"]]
    assert sizes[0] == LAST
    assert found["before"] == [[shape, 0] for shape in sizes]
    assert sorted(found["after"]) == sorted(runs["call"]["after"]), "nothing else was captured"
    assert found["misses"] == 0
    assert not found["compiler"]


def test_what_needs_a_callers_tensors_is_named(runs):
    net, step, pure = runs["warm"]["warmed"]
    assert net == [1, 3, []]
    assert pure == [1, 3, []]
    assert step[:2] == [1, 0]
    (reason,) = step[2]
    assert reason.endswith("it writes to float32[3, 4], input 1, which belongs to the caller")
    assert runs["warm"]["decoder"] == runs["call"]["decoder"]


def test_a_method_is_warmed_at_its_first_call(runs):
    assert len(runs["argument"]["pure"]) == 3
    assert len(runs["call"]["pure"]) == 1


def test_show_prints_the_plan(runs, surroundings):
    folder = runs["folder"]
    entries = [path.name for path in Path(folder, "v1", "rec").rglob("*") if path.is_file()]
    assert len(entries) == 3
    found = [json.loads(shown(surroundings, folder, entry)) for entry in entries]
    (net,) = [entry for entry in found if "Net.forward" in entry["function"]]
    plan = net["capture_plan"]
    assert [(row["shape"], row["uses"], row["order"]) for row in plan] == [
        (LAST, 9, 1),
        ("4, float32[4, 4], 2", 6, 2),
        ("3, float32[3, 4], 2", 3, 0),
    ]
    assert all(row["bytes"] > 0 and row["seconds"] > 0 for row in plan)
    assert f"#1: {LAST}: 9 replays" in shown(surroundings, folder, net["entry"], "table")
    (step,) = [entry for entry in found if "Decoder.step" in entry["function"]]
    assert "which belongs to the caller" in step["capture_plan"][0]["needs_a_call"]


SPOILT = {
    "cut short": lambda data: data[:-7],
    "changed": lambda data: data.replace(b"float32", b"float64"),
}


@pytest.fixture
def filled(once, tmp_path):
    """A copy of a folder that a worker has filled."""

    def make(surroundings):
        folder = surroundings.folder / "plans"
        work(surroundings, "call", folder)
        return str(folder)

    return shutil.copytree(once("filled", make), tmp_path / "plans")


def test_a_bad_plan_is_none_and_no_miss(filled, surroundings):
    rec = Path(filled, "v1", "rec")
    for name, spoil in SPOILT.items():
        for path in (path for path in rec.rglob("*") if path.is_file()):
            path.write_bytes(spoil(path.read_bytes()))
        found = work(surroundings, "warm", filled)
        assert found["equal"], name
        assert found["misses"] == 0, name
        assert found["warmed"] == [[0, 0, []]] * 3, name
        assert len([path for path in rec.rglob("*") if path.is_file()]) == 3, "written anew"


GARBAGE = [
    {"inputs": [], "graphs": [[[0], False, "", "x", 1, 1, 1.0]]},
    {"inputs": [["number", 3]], "graphs": [[[0], False, "", "x", 1, 1, 1.0]]},
    {"inputs": [["tensor", "float32", [-1], [1]]], "graphs": []},
    {"inputs": [["named", "no.such"]] * 5, "graphs": [[[0] * 5, False, "", "x", 1, 1, 1.0]]},
    {"graphs": 3},
    [1, 2],
    "text",
]


def test_a_plan_that_fits_nothing_captures_nothing(filled, surroundings):
    store = open_store(Settings(cache_dir=Path(filled)))
    entries = [path.name for path in Path(filled, "v1", "rec").rglob("*") if path.is_file()]
    for garbage in (GARBAGE[1], GARBAGE[3]):
        for entry in entries:
            assert store.write_record(entry, garbage) is None
        found = work(surroundings, "warm", filled)
        assert found["equal"]
        assert found["misses"] == 0
        assert sum(graphs for _, graphs, _ in found["warmed"]) == 0


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_no_plan(garbage, tmp_path):
    from npugx_cache import capture_plan

    store, entry = open_store(Settings(cache_dir=tmp_path / "cache")), "ab" * 32
    assert store.write_record(entry, garbage) is None
    for row in capture_plan.read(store, entry):
        assert row.planned.inputs  # whether they can be made is for the program to say
