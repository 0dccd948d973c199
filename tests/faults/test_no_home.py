"""Without a home folder the cache stands aside, and says what to set (P2)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("no_home.py")


@pytest.mark.thorough
def test_the_functions_run_and_one_warning_names_the_variable(surroundings):
    row = surroundings.run(SCRIPT, NPUGX_CACHE_DIR=None)
    assert all(row["right"])
    assert row["counts"] == [[0, 1, 0, 0]] * 3  # compiled for this process, and not stored
    (warning,) = row["told"]
    assert "no home folder" in warning
    assert "NPUGX_CACHE_DIR" in warning
    assert "NPUGX_CACHE_DIR" in row["explained"]


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["on", "off"])
def test_what_needs_no_default_says_nothing(surroundings, mode):
    folder = str(surroundings.store) if mode == "on" else None
    row = surroundings.run(SCRIPT, NPUGX_CACHE=mode, NPUGX_CACHE_DIR=folder)
    assert all(row["right"])
    assert row["told"] == []
    assert sum(stored for *_, stored in row["counts"]) == (mode == "on")


@pytest.mark.thorough
def test_a_folder_that_is_named_below_a_home_is_refused_by_the_variable(surroundings):
    worker = surroundings.start(SCRIPT, NPUGX_CACHE_DIR="~/cache")
    _, err = worker.process.communicate(timeout=120)
    assert "OptionError: NPUGX_CACHE_DIR='~/cache'" in err.splitlines()[-1]
    assert "Write the whole path" in err


@pytest.mark.parametrize(
    "command",
    [
        "ls",
        *(pytest.param(each, marks=pytest.mark.thorough) for each in ("stats", "doctor", "config")),
    ],
)
def test_a_command_names_the_variable(surroundings, command):
    done = subprocess.run(
        [sys.executable, SCRIPT, command],
        env=surroundings.environment(NPUGX_CACHE_DIR=None),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Name a folder with NPUGX_CACHE_DIR" in done.stderr
    assert "Traceback" not in done.stderr
