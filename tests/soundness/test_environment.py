"""Whole processes in other surroundings: what must miss, what must hit, what must refuse."""

from __future__ import annotations

import platform

import pytest
import torch
from matrix import ROWS
from pretences import PRETENCES
from processes import RUN, write

pytestmark = pytest.mark.thorough

NAMES = ["nothing_changed", "weights_changed"]
STARTED = {
    "under -O": {"PYTHONOPTIMIZE": "1"},
    "with fewer instructions of the CPU": {"ATEN_CPU_CAPABILITY": "default"},
    "with a variable that steers Dynamo": {"TORCHDYNAMO_INLINE_INBUILT_NN_MODULES": "0"},
    "with other modules imported first": {"NPUGX_TEST_IMPORTS": "sqlite3,torch.fx,decimal"},
    "with other variables": {"MASTER_ADDR": "elsewhere", "WORLD_SIZE": "8"},
}
"""Processes by the environment variables that make them what they are."""
HITS = ["with other modules imported first", "with other variables"]


@pytest.fixture(scope="module")
def elsewhere(once):
    def make(surroundings):
        tree = surroundings.folder / "tree"
        write(tree, {name: ROWS[name] for name in NAMES}, changed=False)
        surroundings.run(RUN, tree, "cold", *NAMES)
        readonly = {"NPUGX_CACHE": "readonly"}
        answers = {
            name: surroundings.run(RUN, tree, "cold", *NAMES, **readonly, **variables)
            for name, variables in STARTED.items()
        }
        return answers | surroundings.run(RUN, tree, "pretended", *PRETENCES, **readonly)

    return once("elsewhere", make)


@pytest.mark.parametrize("name", HITS)
def test_surroundings_that_do_not_matter_are_a_hit(elsewhere, name):
    for row in elsewhere[name].values():
        assert row["difference"] is None
        assert (row["hits"], row["misses"]) == (1, 0), row["reasons"]


@pytest.mark.parametrize("name", [name for name in STARTED if name not in HITS])
def test_surroundings_that_matter_are_a_miss(elsewhere, name):
    if name == "with fewer instructions of the CPU":
        if platform.machine() == "aarch64":
            pytest.skip("torch has no lesser code for an aarch64 without SVE")
        assert torch.backends.cpu.get_cpu_capability() != "DEFAULT", "this CPU can't show it"
    for row in elsewhere[name].values():
        assert row["difference"] is None
        assert (row["hits"], row["misses"]) == (0, 1)
        assert row["reasons"]


@pytest.mark.parametrize("name", PRETENCES)
def test_another_version_or_platform_is_a_miss_that_says_so(elsewhere, name):
    row = elsewhere[name]
    assert row["difference"] is None
    assert (row["hits"], row["misses"]) == (0, 1)
    assert any(PRETENCES[name][1] in reason for reason in row["reasons"])
