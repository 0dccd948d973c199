"""vLLM's own manager of compilers drives ours, and a whole start does, where vLLM is installed."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from entry_points import install

HERE = Path(__file__).parent
OURS = "npugx_cache.integrations.vllm.NpugxCompiler"

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
]


def test_vllms_manager_stores_handles_and_loads_by_them(surroundings):
    folder = surroundings.folder / "vllm"
    path = os.environ["PYTHONPATH"]
    cold = surroundings.run(HERE / "run_vllm.py", folder, PYTHONPATH=path)
    assert cold == {"difference": 0.0, "info": [0, 2, 0, 2], "handles": 2}
    warm = surroundings.run(HERE / "run_vllm.py", folder, PYTHONPATH=path)
    assert warm == {**cold, "info": [2, 0, 0, 0]}


def test_a_whole_start_compiles_each_piece_once_for_all_hosts(surroundings):
    site = surroundings.folder / "site"
    installed = install(site)
    with (installed / "entry_points.txt").open("a") as file:
        file.write("[vllm.platform_plugins]\nown = whole_vllm_platform:register\n")
    path = os.pathsep.join([str(site), str(HERE), os.environ["PYTHONPATH"]])

    def start(host):
        return surroundings.run(
            HERE / "run_whole_vllm.py",
            surroundings.folder / "model",
            PYTHONPATH=path,
            NPUGX_CACHE_VLLM="1",
            VLLM_CACHE_ROOT=str(surroundings.folder / host),
        )

    cold = start("one")
    assert f"INFO vLLM on PiecewiseCpu compiles with {OURS} in the place of inductor" in " ".join(
        cold["messages"]
    )
    # Before, between and behind three layers: the two pieces between are one entry.
    assert cold["info"] == [1, 3, 0, 3], cold["messages"]
    assert start("another")["info"] == [4, 0, 0, 0]
    assert start("one")["info"] == [4, 0, 0, 0]
