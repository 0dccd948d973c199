"""On a GPU, the suites that run on one device each: `pytest -m cuda`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("programs.py")
SECONDS = 3000
UNCAPTURED = {"between_the_host_and_the_device": ["it works on more than one device: cpu, cuda:0"]}
"""Why a program runs uncaptured."""

pytestmark = [pytest.mark.cuda, pytest.mark.thorough, pytest.mark.timeout(SECONDS + 60)]


@pytest.mark.parametrize("target", ["capture", "plan", "npu_sim/test_qwen3.py"])
def test_the_suite_passes_on_the_gpu(target):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "",
            "-p",
            "no:cacheprovider",
            f"tests/{target}",
        ],
        cwd=REPOSITORY,
        env={**os.environ, "NPUGX_TEST_DEVICE": "cuda"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]


def test_programs_restart_on_the_gpu(surroundings):
    cold, warm = (surroundings.run(PROGRAMS, "cuda") for _ in range(2))
    for name, found in warm.items():
        assert cold[name]["difference"] is None, name
        assert cold[name]["bypasses"] == 0, (name, cold[name]["reasons"])
        assert found["difference"] is None, name
        assert (found["misses"], found["bypasses"], found["loaded"]) == (0, 0, []), name
        assert found["digest"] == cold[name]["digest"], name
        said = [warning.split("uncaptured: ")[-1] for warning in found["warnings"]]
        assert said == UNCAPTURED.get(name, []), name


def test_the_benchmark_runs(tmp_path):
    command = [sys.executable, REPOSITORY / "benchmarks" / "cuda.py", "--quick"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "npugx_cache" in done.stdout
