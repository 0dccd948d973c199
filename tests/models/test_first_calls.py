"""Models that transformers changes at their first call: a restart hits at the first call (P3).

After each call the model is as eager leaves it: the same hooks in the same order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("first_calls.py")
HALVES = (
    ("llama, by config", "llama, in turn", "llama, other sizes", "mixtral, router", "by hand"),
    ("llama, base model", "qwen3-moe, router", "llava", "llava, all"),
)
CASES = tuple(case for half in HALVES for case in half)
HOOKS = {"mixtral, router": 6, "qwen3-moe, router": 6, "llava, all": 8}
EDITED = ("function edited", "installer edited", "forward edited")
WANTED = "def wanted():\n    return {}\n"


@pytest.fixture(scope="module")
def runs(once):
    def phase(surroundings, *parts, **environment):
        workers = [surroundings.start(SCRIPT, *part, **environment) for part in parts]
        return {case: row for worker in workers for case, row in worker.result(590).items()}

    def make(surroundings):
        return {
            "cold": phase(surroundings, *HALVES, EDITED, PYTHONHASHSEED="1"),
            "warm": phase(surroundings, *HALVES, PYTHONHASHSEED="2"),
            "edited": phase(surroundings, ("--edited", *EDITED)),
        }

    return once("first calls", make)


def rows_of(run, case):
    assert "error" not in run[case], run[case]["error"]
    return run[case]["rows"]


def is_as_in_eager(row):
    assert row["difference"] is None
    assert row["state"] == []
    in_eager, in_cached = row["calls"]
    assert in_cached == in_eager


@pytest.mark.parametrize("case", CASES)
def test_a_cold_process_compiles_at_its_first_call(runs, case):
    rows = rows_of(runs["cold"], case)
    for row in rows:
        is_as_in_eager(row)
        assert row["counts"][2] == 0
    assert rows[0]["counts"] == [0, 1, 0]
    assert runs["cold"][case]["warnings"] == []
    assert rows[-1]["hooks"] == HOOKS.get(case, 4)


@pytest.mark.parametrize("case", CASES)
def test_a_restarted_process_hits_at_its_first_call_without_a_trace(runs, case):
    cold, warm = rows_of(runs["cold"], case), rows_of(runs["warm"], case)
    for row in warm:
        is_as_in_eager(row)
        assert row["counts"][1:] == [0, 0], runs["warm"][case]["reasons"]
        assert row["frames"] == row["traces"] == 0
    assert warm[0]["counts"] == [1, 0, 0]
    assert [row["digest"] for row in warm] == [row["digest"] for row in cold]


def test_another_function_in_its_place_is_not_called_ahead(runs):
    """The edit counts its calls: one more than in eager would be seen."""
    rows = rows_of(runs["edited"], "function edited")
    for row in rows:
        is_as_in_eager(row)
    assert rows[0]["calls"] == [1, 1]
    assert rows[0]["counts"] == [0, 0, 1]
    assert rows[0]["hooks"] == 4


def test_an_installer_that_never_says_that_it_is_done_runs_as_often_as_in_eager(runs):
    rows = rows_of(runs["edited"], "installer edited")
    for row in rows:
        is_as_in_eager(row)
    assert [row["calls"] for row in rows] == [[1, 1], [0, 0], [1, 1]]
    assert rows[-1]["hooks"] == 8


def test_a_forward_that_no_longer_asks_installs_nothing(runs):
    rows = rows_of(runs["edited"], "forward edited")
    for row in rows:
        is_as_in_eager(row)
        assert row["hooks"] == 0


def test_code_before_the_set_up_is_a_condition_of_it(surroundings):
    """An edit of a user's function on the way to the set-up: eager installs nothing then."""

    def run(wanted):
        (surroundings.folder / "asks.py").write_text(WANTED.format(wanted))
        answers = surroundings.run(
            SCRIPT, "asks", cwd=surroundings.folder, PYTHONDONTWRITEBYTECODE="1"
        )
        rows = rows_of(answers, "asks")
        for row in rows:
            is_as_in_eager(row)
        return [rows[0]["counts"], rows[0]["hooks"]]

    assert run(True) == [[0, 1, 0], 4]
    assert run(False) == [[0, 1, 0], 0]
    assert run(True) == [[1, 0, 0], 4]


def test_a_first_call_of_a_size_that_nobody_met_hits_without_a_trace(surroundings):
    """With `dynamic=None` the second size makes the set-up, like the graph, one for all sizes."""
    found = []
    for length in (11, 13, 15):
        case = f"llava of {length}"
        (row,) = rows_of(surroundings.run(SCRIPT, case), case)
        is_as_in_eager(row)
        found.append([row["counts"], row["traces"]])
    assert found == [[[0, 1, 0], 2], [[0, 1, 0], 2], [[1, 0, 0], 0]]


@pytest.mark.parametrize("restarted", [False, True])
def test_threads_that_call_first_at_once_install_the_hooks_once(surroundings, restarted):
    case = "llama, in turn"
    if restarted:
        rows_of(surroundings.run(SCRIPT, case), case)
    found = surroundings.run(SCRIPT, "--threads", case)[case]
    assert "error" not in found, found["error"]
    assert found["differences"] == []
    assert found["calls"] == 24
    assert found["state"] == []
    assert found["bypasses"] == 0
    assert found["misses"] == (0 if restarted else 1)


def test_of_two_cold_processes_one_compiles(surroundings):
    case = "llama, by config"
    workers = [surroundings.start(SCRIPT, case) for _ in range(2)]
    last = [rows_of(worker.result(), case)[-1] for worker in workers]
    for row in last:
        is_as_in_eager(row)
    assert sorted(row["counts"] for row in last) == [[0, 1, 0], [1, 0, 0]]
