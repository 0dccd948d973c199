"""What people install: the wheel and the sdist hold the package, and an installed wheel works.

A checkout has `npugx_cache/backend` and `npugx_cache/store` as links, and a wheel must not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough
REPOSITORY = Path(__file__).parents[2]
LINKED = ("backend", "store")
SCRIPT = """
    import json, sys, torch, npugx_cache
    from npugx_cache import cache_compile

    @cache_compile
    def f(x):
        return (x * 2).relu()

    right = torch.equal(f(torch.ones(3)), torch.full((3,), 2.0))
    traced = "torch._dynamo" in sys.modules
    print(json.dumps([npugx_cache.__file__, right, f.cache_info()[:4], traced]))
"""


def run(*command, cwd, **environment):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NPUGX_", "PYTHON"))}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def package_files():
    """What the package holds, by its name in an installation."""
    tracked = run("git", "ls-files", "npugx_cache", *LINKED, cwd=REPOSITORY).split()
    for name in tracked:
        top, _, rest = name.partition("/")
        if top in LINKED:
            yield f"npugx_cache/{top}/{rest}"
        elif rest not in LINKED:
            yield name


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    build = sys.executable, "-m", "build", "--no-isolation", "--outdir", folder
    run(*build, REPOSITORY, cwd=folder)  # the wheel is built from the sdist
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_holds_the_package_and_nothing_else(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    assert {name for name in names if ".dist-info/" not in name} == set(package_files())


def test_the_sdist_holds_the_package_its_tests_and_no_links(built):
    with tarfile.open(built[1]) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    assert not any(member.issym() or member.islnk() for member in members)
    assert set(package_files()) <= names
    assert {"tests/conftest.py", "README.md", "LICENSE", "pyproject.toml"} <= names


def test_an_installed_wheel_compiles_restarts_and_lists(built, tmp_path):
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", built[0], cwd=tmp_path)
    (site,) = home.glob("lib/python*/site-packages")
    # Everything else comes from this environment; its own .pth files are not followed.
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    cache = {"NPUGX_CACHE_DIR": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state")}
    cold, restarted = (json.loads(run(python, script, cwd=tmp_path, **cache)) for _ in range(2))
    assert cold == [str(site / "npugx_cache" / "__init__.py"), True, [0, 1, 0, 1], True]
    assert restarted == [cold[0], True, [1, 0, 0, 0], False]
    listed = run(home / "bin" / "npugx-cache", "ls", "--format", "json", cwd=tmp_path, **cache)
    assert len(json.loads(listed)["entries"]) == 1


TYPED = """
import torch
from npugx_cache import CachedFunction, Refusal, Uncacheable, Warmed, cache_compile

@cache_compile
def scale(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x * by

@cache_compile(dynamic=True, fullgraph=True)
def shift(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x + 1, 1

class Net(torch.nn.Module):
    @cache_compile
    def decode(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

x = torch.ones(3)
net = cache_compile(Net())
a: torch.Tensor = scale(x, by=3.0)
b: tuple[torch.Tensor, int] = shift(x)
c: torch.Tensor = net.decode(x, 3)
d: tuple[Refusal, ...] = scale.explain()
e: Warmed = scale.warm(x)
assert isinstance(net.forward, CachedFunction)
f: int = net.forward.cache_info().hits
try:
    cache_compile(strict=True)(net)
except Uncacheable as error:
    print(error.reason)
scale(x, "bad")  # error: [arg-type]
scale(x, 1.0, 7)  # error: [call-arg]
net.decode(x)  # error: [call-arg]
cache_compile(scale, fullgraph="no")  # error: [call-overload]
"""


def test_a_type_checker_knows_parameters_and_results_outside_of_the_checkout(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(TYPED)
    mypy = sys.executable, "-m", "mypy", "--strict", "--python-executable", sys.executable
    options = "--cache-dir", tmp_path / "mypy", "--no-error-summary"
    checked = [*mypy, *options, script]
    done = subprocess.run(checked, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = [line.split(":", 2) for line in done.stdout.splitlines() if ": error:" in line]
    expected = [
        (str(number), line.rpartition("[")[2])
        for number, line in enumerate(TYPED.splitlines(), 1)
        if "# error:" in line
    ]
    assert [(row[1], row[2].rpartition("[")[2]) for row in found] == expected, done.stdout
