"""Qwen3 without a mask, growing and with a StaticCache: eager, cold, restarted, on CPU and NPU."""

import json
import os
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "qwen3.py"
DEVICE = os.environ.get("NPUGX_TEST_DEVICE", "cpu")
PASSED_ON = ("PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD")
OPTIONS = [
    {},
    {"capture_limit": 256},
    {"capture_limit": 2},
    {"clone_input": False},
    {"clone_output": False},
    {"frozen_parameter": True},
    {"force_eager": True},
    {"force_recapture": True},
    {"remove_noop_ops": False},
]
ON_NPU_ONLY = [{"reuse_graph_pool_in_same_fx": False}, {"capture_error_mode": "relaxed"}]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [*OPTIONS, *(ON_NPU_ONLY if DEVICE == "npu" else ())], ids=json.dumps
)
def test_qwen3_cold_and_restarted(surroundings, options):
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    cold, warm = (
        surroundings.run("-W", "ignore", SCRIPT, DEVICE, json.dumps(options), **kept)
        for _ in range(2)
    )
    for loop in ("growing", "decoding"):
        assert cold[loop]["close"]
        assert warm[loop]["close"]
        assert warm[loop]["digest"] == cold[loop]["digest"]
        assert (warm[loop]["misses"], warm[loop]["bypasses"]) == (0, 0)
        assert cold[loop]["bypasses"] == 0
        captured = DEVICE == "npu" and not options.get("force_eager")
        assert (warm[loop]["replays"] > 0) == captured
