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


def test_its_fusion_runs_at_each_start_and_nothing_is_stored(surroundings):
    path = os.pathsep.join([surroundings.environment()["PYTHONPATH"], os.environ["PYTHONPATH"]])
    for scale, is_fused in (("2.5", True), ("2.5", True), ("3.0", False)):  # another pattern
        found = surroundings.run(SCRIPT, scale, PYTHONPATH=path)
        (warning,) = found.pop("warnings")
        assert "nothing tells whether they are the same in another process" in warning
        assert found == {"difference": 0.0, "info": [0, 0, 1, 0], "fused": is_fused, "runs": 1}
