"""vllm-ascend's own Python under `NpugxCompiler`, where its sources and vLLM's are at hand.

`VLLM_ASCEND` names the folder of the package `vllm_ascend`.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run_ascend.py")

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None or "VLLM_ASCEND" not in os.environ,
        reason="vllm or the sources of vllm-ascend are missing",
    ),
]


@pytest.fixture
def path(surroundings):
    return os.pathsep.join([surroundings.environment()["PYTHONPATH"], os.environ["PYTHONPATH"]])


def test_its_fusion_runs_at_each_start_and_nothing_is_stored(surroundings, path):
    for scale, is_fused in (("2.5", True), ("2.5", True), ("3.0", False)):  # another pattern
        found = surroundings.run(SCRIPT, scale, PYTHONPATH=path)
        (warning,) = found.pop("warnings")
        assert "nothing tells whether they are the same in another process" in warning
        assert found == {"difference": 0.0, "info": [0, 0, 1, 0], "fused": is_fused, "runs": 1}


def test_its_fusion_is_in_the_stored_graph_where_the_user_answers_for_it(surroundings, path):
    def start(scale):
        found = surroundings.run(SCRIPT, scale, PYTHONPATH=path, NPUGX_CACHE_ENGINE_PASSES="store")
        assert (found["difference"], found["warnings"]) == (0.0, [])
        return found["info"], found["fused"], found["runs"]

    assert start("2.5") == ([0, 1, 0, 1], True, 1)
    assert start("2.5") == ([1, 0, 0, 0], True, 0)
    assert start("3.0") == ([0, 1, 0, 1], False, 1)  # another pattern
