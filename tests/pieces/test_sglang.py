"""sglang's own backend drives ours, where sglang is installed."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from entry_points import install

SCRIPT = Path(__file__).with_name("run_sglang.py")


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed")
def test_sglangs_backend_compiles_nothing_at_its_second_start(surroundings):
    site = surroundings.folder / "site"
    install(site)
    environment = {
        "PYTHONPATH": os.pathsep.join([str(site), os.environ["PYTHONPATH"]]),
        "NPUGX_CACHE_SGLANG": "1",
        "SGLANG_CACHE_DIR": str(surroundings.folder / "sglang"),
    }
    cold = surroundings.run(SCRIPT, **environment)
    # Of four pieces, the two between the layers are equal.
    assert cold == {
        "compiler": "NpugxCompiler",
        "difference": 0.0,
        "info": [1, 3, 0, 3],
        "handles": 4,
        "warnings": [],
    }
    assert surroundings.run(SCRIPT, **environment) == {**cold, "info": [4, 0, 0, 0]}
