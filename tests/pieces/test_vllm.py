"""vLLM's own manager of compilers drives ours, where vLLM is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run_vllm.py")


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
def test_vllms_manager_stores_handles_and_loads_by_them(surroundings):
    folder = surroundings.folder / "vllm"
    cold = surroundings.run(SCRIPT, folder)
    assert cold == {"difference": 0.0, "info": [0, 2, 0, 2], "handles": 2}
    assert surroundings.run(SCRIPT, folder) == {**cold, "info": [2, 0, 0, 0]}
