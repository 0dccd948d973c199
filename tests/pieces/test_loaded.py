"""Graphs that a process gets without tracing anything: `load_graph`, and torch's `aot_compile`."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from of_this_torch import saves_graphs

SCRIPT = Path(__file__).with_name("graphs.py")
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def answers(once):
    return once("pieces-loaded", made)


def made(surroundings):
    stored = surroundings.run(SCRIPT, "store")
    plain, _, holding = stored["entries"]
    found = {
        "store": stored,
        "load": surroundings.run(SCRIPT, "load", plain, holding),
        "files": held_is_in(surroundings.store),
        "rows": surroundings.listing(),
        "readable": surroundings.command("readable", holding).stdout,
        "misses": json.loads(surroundings.command("misses", "--format", "json").stdout),
        "pruned": surroundings.command("prune", "--all", "--yes").returncode,
        "left": surroundings.listing(),
    }
    if stored["saved"]:
        found["unpickle"] = surroundings.run(SCRIPT, "unpickle")
    return found


def held_is_in(folder):
    """Whether a file of the store has the values of the tensor that a graph held."""
    values = struct.pack("8f", *[0.123456789] * 8)
    return any(values in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_equal_graphs_share_an_entry(answers):
    first, again, _ = answers["store"]["entries"]
    assert answers["store"]["right"]
    assert first == again
    assert answers["store"]["explained"] == [["used, because its conditions hold"]]


def test_a_held_tensor_stays_the_callers_and_is_never_stored(answers):
    assert answers["store"]["product"]
    assert answers["store"]["written"]
    assert answers["files"] is False
    assert answers["load"]["product"]


def test_a_graph_is_loaded_by_its_entry_without_a_compiler(answers):
    assert answers["load"]["right"]
    assert answers["load"]["compilers"] == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("held", "the graph holds 1 tensors, 0 are given"),
        ("gone", "no entry starts with 0123456789ab"),
        ("option", "option.inplace_pass was True, is False"),
        ("backend", "backend was npugraph_ex, is aot_eager"),
        ("switch", "torch.float32_matmul_precision was highest, is high"),
        ("state", "torch.get_default_dtype() was float32, is float64"),
        ("patched", "the special methods of torch.Tensor changed"),
    ],
)
def test_an_entry_that_does_not_fit_is_a_miss_with_its_reason(answers, name, said):
    assert said in answers["load"]["misses"][name]


def test_what_the_command_line_says_of_a_graph(answers):
    titles = {row["function"] for row in answers["rows"] if row["kind"] == "piece"}
    assert "1 inputs: add_.Tensor, mul.Tensor" in titles
    assert "def forward(arg0, held0):" in answers["readable"]
    outcomes = {(row["function"], row["outcome"]) for row in answers["misses"]["misses"]}
    assert {(title, "miss") for title in titles} <= outcomes


@saves_graphs
def test_a_saved_graph_needs_no_store(answers):
    assert answers["pruned"] == 0
    assert answers["left"] == []
    assert answers["unpickle"]["right"]
    assert answers["unpickle"]["grad"] == [True, False]
    assert "compiled for inference, without a backward graph" in answers["unpickle"]["backward"]


@saves_graphs
def test_a_saved_graph_that_does_not_fit_says_why(answers):
    said = answers["unpickle"]["precision"]
    assert said.startswith("OutdatedGraph: the saved graph (")
    assert "torch.float32_matmul_precision was highest, is high" in said
