"""Stores that a build step filled, in workers: baked folders, bundles, kinds of machines."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
SERVING = HERE / "serving.py"
pytestmark = pytest.mark.thorough


@pytest.fixture
def command(surroundings):
    """Run `npugx-cache` on a folder."""

    def run(folder, *args, **environment):
        done = subprocess.run(
            [sys.executable, "-m", "npugx_cache", *map(str, args)],
            cwd=HERE,
            env=surroundings.environment(NPUGX_CACHE_DIR=str(folder), **environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def built(command, surroundings):
    """Fill a folder in a build step, and give the path of it in another place."""

    def building(name, *functions, **environment):
        folder, elsewhere = surroundings.folder / "build", surroundings.folder / name
        for function in functions:
            command(folder, "warm", f"model:{function}", "--inputs", "float32[4, 4]", **environment)
        shutil.move(folder, elsewhere)
        return elsewhere

    return building


def serve(surroundings, *calls, **environment):
    made = surroundings.run(SERVING, *calls, cwd=HERE, **environment)
    assert made["right"]
    return made["hits"], made["misses"], made["stored"]


def contents(folder):
    return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in folder.rglob("*")}


def entries(command, folder):
    found = json.loads(command(folder, "ls", "--format", "json"))["entries"]
    return sorted(row["function"] for row in found)


def test_a_baked_folder_below_a_writable_one(command, built, surroundings):
    image = built("image", "scale", "net")
    for path in (image, *image.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before, calls = contents(image), ("scale:4,4", "net:4,4", "shift:3")
    layers = {"NPUGX_CACHE_BAKED_DIR": str(image)}
    assert serve(surroundings, *calls, **layers) == (2, 1, 1)
    assert serve(surroundings, *calls, **layers) == (3, 0, 0)
    assert entries(command, surroundings.store) == ["model.shift"]
    must_hit = layers | {"NPUGX_CACHE_ON_MISS": "raise"}
    assert serve(surroundings, *calls, **must_hit) == (3, 0, 0)
    assert contents(image) == before


def test_a_baked_folder_alone(built, surroundings):
    image = built("image", "scale")
    before = contents(image)
    alone = {"NPUGX_CACHE_DIR": str(image), "NPUGX_CACHE": "readonly"}
    assert serve(surroundings, "scale:4,4", "shift:3", **alone) == (1, 1, 0)
    assert serve(surroundings, "scale:4,4", "shift:3", **alone) == (1, 1, 0)
    assert contents(image) == before


def test_several_baked_folders(built, surroundings):
    images = [built("base", "scale"), built("model", "net", "shift")]
    layers = {"NPUGX_CACHE_BAKED_DIR": ":".join(map(str, images))}
    assert serve(surroundings, "scale:4,4", "net:4,4", "shift:4,4", **layers) == (3, 0, 0)


def test_a_bundle_of_what_a_filter_chooses(command, built, surroundings, tmp_path):
    image, bundle = built("image", "scale", "shift"), tmp_path / "scale.tar"
    command(image, "export", bundle, "--filter", "function=model.scale", "--filter", "kind=graph")
    command(surroundings.store, "import", bundle)
    assert entries(command, surroundings.store) == ["model.scale"]
    must_hit = {"NPUGX_CACHE_ON_MISS": "raise"}
    assert serve(surroundings, "scale:4,4", **must_hit) == (1, 0, 0)
    assert serve(surroundings, "scale:4,4", "shift:4,4") == (1, 1, 1)


KINDS = {
    "this": {},
    "another Python": {"PYTHONOPTIMIZE": "1"},
    "another processor": {"ATEN_CPU_CAPABILITY": "default"},
}
"""With -O, bytecode is another, as with another version; torch takes a CPU for a lesser one."""


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="this CPU has no lesser one"
)
def test_bundles_of_several_kinds_of_machines_side_by_side(command, built, surroundings, tmp_path):
    for number, environment in enumerate(KINDS.values()):
        image, bundle = built(f"image {number}", "net", **environment), tmp_path / f"{number}.tar"
        command(image, "export", bundle)
        told = json.loads(command(surroundings.store, "import", bundle, "--format", "json"))
        assert (len(told["entries"]), told["new"]) == (1, 1)
    assert len(entries(command, surroundings.store)) == len(KINDS)
    for environment in KINDS.values():
        must_hit = environment | {"NPUGX_CACHE_ON_MISS": "raise"}
        assert serve(surroundings, "net:4,4", **must_hit) == (1, 0, 0)
    neither = KINDS["another Python"] | KINDS["another processor"]
    made = surroundings.run(SERVING, "net:4,4", cwd=HERE, **neither)
    assert (made["hits"], made["misses"], made["right"]) == (0, 1, True)
    assert set(made["reasons"]) <= {"versions", "device"}
