"""No two names of a store differ in case alone, so a folder that ignores case holds one as well.

The folder is a real one of that kind: exFAT in an image file, mounted by FUSE.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from npugx_cache.store.format import layout
from npugx_cache.store.io import syscalls

PROGRAM = """
import json, sys, torch, npugx_cache.version
npugx_cache.version.FORMAT = sys.argv[1]  # two releases differ in it
from npugx_cache import cache_compile

def scale(x): return x * 2
def Scale(x): return x * 3
class net(torch.nn.Module):
    def forward(self, x): return x + 1
class Net(torch.nn.Module):
    def forward(self, x): return x + 2
class Held:
    weight, Weight = 4.0, 5.0
def held(x): return x * Held.weight
def Held_(x): return x * Held.Weight

x, right, infos = torch.ones(3), [], []
for each, wanted in ((scale, 2), (Scale, 3), (net(), 2), (Net(), 3), (held, 4), (Held_, 5)):
    cached = cache_compile(each)
    right.append(torch.equal(cached(x), torch.full((3,), float(wanted))))
    infos.append(getattr(cached, "forward", cached).cache_info()[:3])
print(json.dumps([all(right), [sum(column) for column in zip(*infos)]]))
"""


def test_all_names_are_lower_case(store, publish, root):
    publish(store, 1)
    store.quarantine(publish(store, 2), "a test")
    with store.lock("cd" * 32, wait=0):
        names = {path.name for path in root.rglob("*")}
    assert any(map(layout.is_lock, names))
    assert any(map(layout.is_quarantined, names))
    assert names - {"CACHEDIR.TAG"} == {name.lower() for name in names} - {"cachedir.tag"}


@pytest.mark.parametrize("name", ["AB" * 32, "aB" + "0" * 62])
def test_a_name_with_capitals_is_no_name(name):
    tests = layout.is_digest, layout.is_key
    assert not any(test(name) for test in tests)
    assert all(test(name.lower()) for test in tests)
    assert syscalls.random_name().islower()


@pytest.fixture
def without_case(tmp_path):
    lacking = [each for each in ("mkfs.exfat", "mount.exfat-fuse") if shutil.which(each) is None]
    if os.geteuid() or lacking:
        pytest.skip("needs root, and apt-get install exfatprogs exfat-fuse")
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with image.open("wb") as out:
        out.truncate(64 << 20)
    options = "uid=0,gid=0,umask=077"

    def run(*command):
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    run("mkfs.exfat", image)
    try:
        device = run("losetup", "--find", "--show", image)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop device here: {error.stderr}")
    try:
        try:
            run("mount.exfat-fuse", "-o", options, device, folder)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no FUSE here: {error.stderr}")
        yield folder
        run("umount", folder)
    finally:
        run("losetup", "--detach", device)


@pytest.mark.thorough
def test_a_folder_that_ignores_case_keeps_names_and_releases_apart(without_case, surroundings):
    program = surroundings.folder / "program.py"
    program.write_text(PROGRAM)

    def run(form, folder):
        return surroundings.run(program, form, NPUGX_CACHE_DIR=str(without_case / folder))

    (without_case / "graphs").mkdir()
    assert (without_case / "GRAPHS").is_dir()
    assert run("one", "graphs") == [True, [0, 6, 0]]
    assert run("another", "graphs") == [True, [0, 6, 0]]
    assert run("one", "Graphs") == [True, [6, 0, 0]]
    assert run("another", "GRAPHS") == [True, [6, 0, 0]]
    surroundings.store = without_case / "gRAPHS"
    assert len(surroundings.listing()) == 12
