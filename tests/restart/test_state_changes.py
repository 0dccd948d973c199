"""What a function does besides computing is done as in eager, cold and restarted (P1)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from npugx_cache import version

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parent / "state_changes.py"
PHASES = ("cold", "restarted")


def _marked(mark):
    """Names of the decorated functions, without importing torch."""
    for node in ast.parse(SCRIPT.read_text()).body:
        for each in getattr(node, "decorator_list", ()):
            if isinstance(each, ast.Name) and each.id == mark:
                yield node.name, None
            elif isinstance(each, ast.Call) and getattr(each.func, "id", "") == mark:
                state, reason = each.args
                text = reason.value if isinstance(reason, ast.Constant) else reason.id
                yield node.name, (state.value, CONSTANTS.get(text, text))


CONSTANTS = {
    "NOT_HELD": "has an effect or an answer that a graph does not hold",
    "SKIPPED": "torch can't trace",
}
REFUSED = dict(_marked("changes"))
CACHED = list(dict(_marked("leaves")))
if version.minor_version(torch.__version__) >= (2, 14):  # Dynamo traces it since
    REFUSED["random_seed"] = "random", "the state of a random.Random has no guard"
if version.minor_version(torch.__version__) < (2, 13):
    REFUSED["deterministic_with_warnings"] = "deterministic", "Attempted to use"
NOT_TRACED = []
"""What puts the state back and is refused, because this torch does not trace it."""
if version.minor_version(torch.__version__) < (2, 12):
    for each in ("autocast", "autocast_dtype", "autocast_cache"):
        REFUSED[each] = "autocast", CONSTANTS["SKIPPED"]
    NOT_TRACED.append("clears_autocast_cache")


@pytest.fixture(scope="module")
def rows(once):
    def make(surroundings):
        return {phase: surroundings.run("-W", "ignore", SCRIPT) for phase in PHASES}

    return once("state_changes", make)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", [*REFUSED, *CACHED])
def test_the_world_is_as_eager_leaves_it(rows, phase, name):
    worlds = rows[phase][name]["worlds"]
    assert worlds["first"] == worlds["eager"]
    assert worlds["second"] == worlds["eager"]


@pytest.mark.parametrize("name", [name for name, (state, _) in REFUSED.items() if state])
def test_eager_changes_what_the_row_is_about(rows, name):
    """Otherwise the rows above could not fail."""
    assert list(rows["cold"][name]["worlds"]["eager"]["changed"]) == [REFUSED[name][0]]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_once_with_its_line_and_not_traced_again(rows, phase, name):
    row = rows[phase][name]
    assert (row["hits"], row["misses"]) == (0, 0)
    assert row["bypasses"] == 2
    ((level, line),) = row["logged"]
    assert level == "WARNING"
    assert REFUSED[name][1] in line
    assert "at state_changes.py:" in line
    assert f" in {name} (`" in line


@pytest.mark.parametrize("name", [name for name in CACHED if name not in NOT_TRACED])
def test_what_puts_the_state_back_is_cached(rows, name):
    counts = [
        [rows[phase][name][key] for key in ("hits", "misses", "bypasses")] for phase in PHASES
    ]
    assert counts == [[0, 1, 0], [1, 0, 0]]
    assert [rows[phase][name]["logged"] for phase in PHASES] == [[], []]


def test_an_operator_without_results_is_called(rows):
    for phase in PHASES:
        for world in rows[phase]["notes"]["worlds"].values():
            assert world["changed"] == {"operator called": [16.0]}


@pytest.mark.parametrize("backend", ["npugraphs", "inductor", "aot_eager"])
def test_by_other_backends_an_operator_without_results_is_called_once_too(surroundings, backend):
    for _ in PHASES:
        row = surroundings.run("-W", "ignore", SCRIPT, "notes", NPUGX_TEST_BACKEND=backend)["notes"]
        assert row["worlds"]["first"] == row["worlds"]["second"] == row["worlds"]["eager"]
        assert row["bypasses"] == (backend == "inductor")  # a library can't hold such a call
