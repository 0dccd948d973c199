"""Every example runs, in small, in processes of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *arguments):
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_restarted_qwen3_generates_the_same_tokens_and_traces_nothing(tmp_path):
    result = run("restart_qwen3.py", "--layers", 2, "--tokens", 4, "--cache-dir", tmp_path)

    assert result.returncode == 0, result.stdout + result.stderr
    assert "runs uncached" not in result.stderr
    lines = result.stdout.splitlines()
    titles, table, verdict = lines[0].split(), lines[1:-1], lines[-1]
    assert titles[-3:] == ["same_tokens", "entries", "traced"]
    assert "nothing traced" in verdict
    rows = [line.split() for line in table]
    assert len(rows) == 3 * 2 * 2  # processes, loops, dtypes
    cold = [row for row in rows if "cold" in row]
    restarted = [row for row in rows if "restarted" in row]
    assert [row[-3] for row in cold + restarted] == ["yes"] * 8
    assert all(row[-1] in ("1", "2") for row in cold)
    assert [row[-1] for row in restarted] == ["0"] * 4
    assert all(row[-2] in ("1", "2") for row in cold + restarted)


def test_examples_stay_short():
    sizes = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert sizes
    assert {name: size for name, size in sizes.items() if size > 60} == {}
