"""The soak of `soak.py` for some seconds, with two workers; `.ci/nightly` runs ten minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "remote"))

import servers

SOAK = Path(__file__).with_name("soak.py")


@pytest.mark.thorough
@pytest.mark.skipif(servers.redis_program() is None, reason="no redis-server here")
def test_kills_edits_prunes_and_faults_of_the_tier_leave_every_result_right():
    done = subprocess.run(
        [sys.executable, SOAK, "--seconds", "15", "--processes", "2", "--format", "json"],
        env={**os.environ, "PYTHONPATH": str(SOAK.parents[2])},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["faults"] == []
    assert min(found[name] for name in ("calls", "compiles", "hits", "edits")) > 0, found
