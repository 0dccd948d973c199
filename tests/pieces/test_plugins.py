"""The entry points in serving engines: what an engine that loads them ends up with."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from npugx_cache import version

sys.path.insert(0, str(Path(__file__).parent))
from entry_points import install

REPOSITORY = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("plugged.py")
OURS = "npugx_cache.integrations.vllm.NpugxCompiler"

vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
sglang = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None, reason="sglang is not installed"
)


@pytest.fixture
def plugged(surroundings):
    """Runs the script where an installation of this package has the entry points of pyproject."""
    installed = install(surroundings.folder / "site")
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join([str(installed.parent), str(REPOSITORY), inherited])

    def run(engine, **environment):
        return surroundings.run(SCRIPT, engine, PYTHONPATH=path, **environment)

    run.installed, run.path = installed, path
    return run


def test_without_a_variable_nothing_is_imported_and_nothing_said(plugged):
    found = plugged("inert", NPUGX_CACHE_VLLM=None, NPUGX_CACHE_SGLANG=None)
    assert found["heavy"] == []
    assert found["messages"] == []
    assert "npugx_cache.events" not in found["ours"]


def test_an_engine_that_is_not_there_raises_nothing(plugged):
    missing = [name for name in ("vllm", "sglang") if importlib.util.find_spec(name) is None]
    found = plugged("inert", NPUGX_CACHE_VLLM="1", NPUGX_CACHE_SGLANG="1")
    for engine in missing:
        assert f"ERROR {engine} is left as it is" in found["messages"]
    wrong = plugged("inert", NPUGX_CACHE_VLLM="yes")["messages"]
    assert wrong == [
        "WARNING vllm is left as it is: NPUGX_CACHE_VLLM='yes': valid values are 0, 1, replace"
    ]


@vllm
@pytest.mark.thorough
def test_vllm_compiles_with_us_where_its_platform_has_no_compiler(plugged):
    found = plugged("vllm", NPUGX_CACHE_VLLM="1")
    assert found["compiler"] == OURS
    assert found["backends"] == [OURS, "inductor"]
    assert found["mega"] is False
    (message,) = found["messages"]
    assert message.startswith("INFO vLLM on ")
    assert message.endswith("(NPUGX_CACHE_VLLM=1, VLLM_USE_MEGA_AOT_ARTIFACT=0)")

    inert = plugged("vllm", NPUGX_CACHE_VLLM=None)
    assert inert["compiler"] == "inductor"
    assert inert["messages"] == []


@vllm
@pytest.mark.thorough
def test_what_the_user_set_to_the_contrary_is_named_and_vllm_is_left_alone(plugged):
    found = plugged("vllm", NPUGX_CACHE_VLLM="1", VLLM_USE_MEGA_AOT_ARTIFACT="1")
    assert found["compiler"] == "inductor"
    for message in found["messages"]:
        assert message.startswith(
            "WARNING vllm is left as it is: with VLLM_USE_MEGA_AOT_ARTIFACT=1"
        )
    assert found["mega"] is True


OWN_PLATFORM = """
from vllm.platforms.interface import Platform, PlatformEnum


class OwnPlatform(Platform):
    _enum = PlatformEnum.OOT
    device_name = device_type = "cpu"

    @classmethod
    def get_compile_backend(cls):
        return "own_platform.OwnCompiler"


def register():
    return "own_platform.OwnPlatform"
"""


@vllm
@pytest.mark.thorough
def test_a_platform_keeps_a_compiler_of_its_own_unless_the_user_says_replace(plugged):
    (plugged.installed.parent / "own_platform.py").write_text(OWN_PLATFORM)
    with (plugged.installed / "entry_points.txt").open("a") as file:
        file.write("[vllm.platform_plugins]\nown = own_platform:register\n")
    kept = plugged("vllm", NPUGX_CACHE_VLLM="1")
    assert kept["compiler"] == "own_platform.OwnCompiler"
    assert kept["mega"] is (version.minor_version(torch.__version__) >= (2, 12))  # vLLM's default
    reason = "OwnPlatform brings its own compiler, own_platform.OwnCompiler"
    left = f"vllm is left as it is: {reason}; NPUGX_CACHE_VLLM=replace puts {OURS} in its place"
    assert set(kept["messages"]) == {f"WARNING {left}"}
    replaced = plugged("vllm", NPUGX_CACHE_VLLM="replace")
    assert replaced["compiler"] == OURS
    (message,) = replaced["messages"]
    assert "in the place of own_platform.OwnCompiler" in message


@vllm
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("platform", "messages"),
    [
        pytest.param("own_platform.OwnPlatform", set(), id="it names our compiler itself"),
        pytest.param(
            "vllm.platforms.cpu.CpuPlatform",
            {
                (
                    "WARNING vllm is left as it is: its CpuPlatform hands a whole model to "
                    "torch.compile, and asks no compiler for pieces"
                )
            },
            id="it asks for no pieces",
        ),
    ],
)
def test_a_platform_that_needs_no_compiler_of_ours_is_left_alone(plugged, platform, messages):
    text = OWN_PLATFORM.replace("own_platform.OwnCompiler", OURS)
    text = text.replace("own_platform.OwnPlatform", platform)
    (plugged.installed.parent / "own_platform.py").write_text(text)
    with (plugged.installed / "entry_points.txt").open("a") as file:
        file.write("[vllm.platform_plugins]\nown = own_platform:register\n")
    assert set(plugged("vllm", NPUGX_CACHE_VLLM="1")["messages"]) == messages


@vllm
@pytest.mark.thorough
def test_the_example_of_an_engine_compiles_nothing_at_its_second_start(plugged, surroundings):
    path = {"PYTHONPATH": plugged.path, "NPUGX_CACHE_VLLM": None}
    for outcome in ("miss in", "hit in"):
        environment = surroundings.environment(**path)
        done = subprocess.run(
            [sys.executable, REPOSITORY / "examples/engine_cpu.py"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.count("equal to eager: True") == 3
        assert outcome in done.stderr
        assert "compiles with npugx_cache.integrations.vllm.NpugxCompiler" in done.stderr


@sglang
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("value", "compilers"),
    [
        (None, ["EagerAdapter", "InductorAdaptor"]),
        ("1", ["NpugxCompiler", "InductorAdaptor"]),
        ("replace", ["NpugxCompiler", "NpugxCompiler"]),
    ],
)
def test_sglang_compiles_with_us(plugged, value, compilers):
    found = plugged("sglang", NPUGX_CACHE_SGLANG=value)
    assert found["compilers"] == compilers
    assert len(found["messages"]) == (value is not None)
