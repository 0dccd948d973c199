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


def test_its_fusion_is_in_the_stored_graph_and_its_settings_are_in_the_key(surroundings):
    path = os.pathsep.join([surroundings.environment()["PYTHONPATH"], os.environ["PYTHONPATH"]])

    def run(scale):
        return surroundings.run(SCRIPT, scale, PYTHONPATH=path)

    cold = run("2.5")
    assert cold == {
        "difference": 0.0,
        "info": [0, 1, 0, 1],
        "fused": True,
        "runs": 1,
        "warnings": [],
    }
    assert run("2.5") == {**cold, "info": [1, 0, 0, 0], "runs": 0}
    assert run("3.0") == {**cold, "fused": False}  # another scale is another pattern
    assert run("3.0") == {**cold, "info": [1, 0, 0, 0], "fused": False, "runs": 0}
