"""`npugx-cache dir` and `npugx-cache config`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from npugx_cache.config import VARIABLES

REPOSITORY = Path(__file__).parents[2]


def test_dir_prints_the_folder_alone_and_why_on_stderr(filled, run, root):
    done = run("dir")
    assert (done.returncode, done.stdout) == (0, f"{root}\n")
    assert done.stderr == "set by NPUGX_CACHE_DIR\n"


@pytest.mark.parametrize(
    ("environment", "options", "origin"),
    [
        ({}, ["--dir", "/x"], "--dir"),
        ({"NPUGX_CACHE_DIR": "/x"}, [], "NPUGX_CACHE_DIR"),
        (
            {"NPUGX_CACHE_DIR": "", "TORCH_NPU_COMPILE_CACHE_DIR": "/x"},
            [],
            "TORCH_NPU_COMPILE_CACHE_DIR",
        ),
        ({"NPUGX_CACHE_DIR": "", "XDG_CACHE_HOME": "/home/x"}, [], "default"),
    ],
)
def test_dir_says_who_chose_the_folder(run, environment, options, origin):
    done = run("dir", *options, "--format", "json", **environment)
    folder = "/home/x/npugx_cache" if origin == "default" else "/x"
    assert json.loads(done.stdout) == {"dir": folder, "origin": origin, "exists": False}
    assert "no cache in it yet" in run("dir", *options, **environment).stderr


def test_config_shows_every_setting_with_its_origin(run, root):
    environment = {"NPUGX_CACHE_MAX_SIZE": "10G", "NPUGX_CACHE_STRICT": "1"}
    done = run("config", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line for line in done.stdout.splitlines()[1:]}
    assert list(rows) == list(VARIABLES)
    assert rows["NPUGX_CACHE_MAX_SIZE"].split()[1:] == ["10G", "environment"]
    assert rows["NPUGX_CACHE_MAX_ENTRIES"].split()[1:] == ["unlimited", "default"]
    assert rows["NPUGX_CACHE_DIR"].split()[1:] == [str(root), "NPUGX_CACHE_DIR"]
    listed = json.loads(run("config", "--format", "json", **environment).stdout)["settings"]
    values = {row["variable"]: row["value"] for row in listed}
    assert values["NPUGX_CACHE_MAX_SIZE"] == 10 << 30
    assert values["NPUGX_CACHE_STRICT"] is True
    assert values["NPUGX_CACHE_MAX_AGE"] is None
    assert values["NPUGX_STATIC_KERNEL_WAIT"] == 1800.0


def test_a_key_file_explains_signed_trust(run, tmp_path):
    run("key", "new", tmp_path / "key")
    shown = run("config", NPUGX_CACHE_KEY_FILE=str(tmp_path / "key")).stdout
    assert re.search(r"NPUGX_CACHE_TRUST +signed +NPUGX_CACHE_KEY_FILE is set", shown)


@pytest.mark.parametrize("command", ["config", "doctor"])
def test_unknown_variables_are_named_with_what_may_be_meant(filled, run, command):
    given = {"NPUGX_CACHE_MAXSIZE": "10G", "NPUGX_ZZZ": "1"}
    done = run(command, **given, NPUGX_TEST_N="1", NPUGX_STRESS_SECONDS="1")
    assert done.returncode == 0
    assert "NPUGX_CACHE_MAXSIZE is no setting of this release; did you mean" in done.stderr
    assert "did you mean NPUGX_CACHE_MAX_SIZE?" in done.stderr
    assert "NPUGX_ZZZ is no setting of this release\n" in done.stderr
    listed = json.loads(run(command, "--format", "json", **given).stdout)["unknown"]
    assert listed == sorted(given)


@pytest.mark.parametrize(
    "variable",
    [
        "NPUGX_CACHE_MAX_SIZE",
        "NPUGX_CACHE_TRUST",
        "NPUGX_CACHE_LOG",
        "NPUGX_STATIC_KERNEL_WAIT",
    ],
)
def test_a_wrong_value_is_one_clear_error(run, variable):
    done = run("config", **{variable: "nonsense"})
    assert done.returncode == 2
    assert f"{variable}='nonsense'" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_variable_that_is_read_is_known_and_documented():
    read = re.findall(r'"(NPUGX_\w+)"', (REPOSITORY / "npugx_cache/config/__init__.py").read_text())
    assert set(read) - {"NPUGX_", "NPUGX_TEST_", "NPUGX_STRESS_"} == set(VARIABLES)
    assert all(read.count(variable) > 1 for variable in VARIABLES)  # listed, and read
    page = (REPOSITORY / "docs/configuration.md").read_text()
    assert set(re.findall(r"`(NPUGX_\w+)`", page)) >= set(VARIABLES)


def test_dir_prints_the_bytes_of_the_name(run_bytes, tmp_path):
    folder = os.fsencode(tmp_path) + b"/a  b\n\xff"
    assert run_bytes("dir", "--dir", os.fsdecode(folder)).stdout == folder + b"\n"
