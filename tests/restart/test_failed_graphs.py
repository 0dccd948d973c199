"""A graph that raises where the function itself does not ends no call of a worker (P2)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("failing.py")


def test_the_function_runs_in_its_place_and_the_next_worker_does_not_try(surroundings):
    cold = surroundings.run(SCRIPT, "fails")
    assert cold["right"] == [True, True, True]
    assert cold["counts"] == [0, 2, 2, 2]  # the graph for float64 does not fail
    (warning,) = cold["warnings"]
    assert "its compiled graph failed where the function itself does not: IndexError" in warning
    kinds = sorted(entry["kind"] for entry in surroundings.listing())
    assert kinds == ["bypass", "graph"]
    (kept,) = [p for p in (surroundings.store / "v1/quarantine").iterdir() if p.suffix == ".reason"]
    assert "its compiled graph failed" in kept.read_text()
    warm = surroundings.run(SCRIPT, "fails")
    assert warm["right"] == [True, True, True]
    assert warm["counts"] == [1, 0, 2, 0]
    assert warm["warnings"] == cold["warnings"]
    assert not warm["dynamo"]


def test_a_graph_that_has_written_to_an_argument_is_not_followed_by_another_run(surroundings):
    row = surroundings.run(SCRIPT, "writes_and_fails")
    assert row["error"][0] == "IndexError"
    assert row["total"] == 1.0  # twice would be a wrong result


def test_an_operator_of_another_package_does_not_run_twice(surroundings):
    row = surroundings.run(SCRIPT, "sends_and_fails")
    assert row["error"][0] == "IndexError"
    assert row["sent"] == 1


def test_an_error_that_the_function_raises_too_is_the_functions_own(surroundings):
    for counts in ([0, 1, 0, 1], [1, 0, 0, 0]):
        row = surroundings.run(SCRIPT, "looks_up")
        ours, eagers = row["errors"]
        assert ours == eagers
        assert ours[0] == "IndexError"
        assert row["right"]
        assert row["counts"] == counts
        assert row["warnings"] == []


@pytest.mark.parametrize("backend", ["npugraph_ex", "aot_eager", "inductor"])
def test_data_that_give_other_sizes_than_the_trace_assumed_run_eagerly(surroundings, backend):
    """The graph and the entry stay, because they are right for other data."""
    for counts, added in (([0, 1, 1, 1], [0, 2, 3, 2]), ([1, 0, 1, 0], [2, 0, 3, 0])):
        row = surroundings.run(SCRIPT, "meets_other_sizes", backend)
        assert all(row["right"]), row
        assert row["errors"][0] == row["errors"][1]
        assert row["errors"][2] == row["errors"][3]
        assert {name for name, _ in row["errors"]} == {"RuntimeError"}
        assert (row["counts"], row["added"]) == (counts, added)
        assert len(row["warnings"]) == 3  # one for each function
        assert all("for other sizes than the data of this call give" in w for w in row["warnings"])
    assert {entry["kind"] for entry in surroundings.listing()} == {"graph"}


def test_a_strict_function_raises(surroundings):
    worker = surroundings.start(SCRIPT, "fails", NPUGX_CACHE_STRICT="1")
    _, err = worker.process.communicate()
    assert worker.process.returncode == 1
    assert "IndexError: out of range" in err


def test_a_graph_deeper_in_the_call_is_the_matter_of_its_own_function(surroundings):
    row = surroundings.run(SCRIPT, "inside")
    assert row["right"]
    assert row["counts"] == [0, 1, 1, 1]


def test_an_error_of_a_custom_operator_is_raised_and_the_graph_stays(surroundings):
    for counts in ([0, 1, 0, 1], [1, 0, 0, 0]):
        row = surroundings.run(SCRIPT, "calls_a_network")
        assert row["errors"] == [None, ["RuntimeError", "the network is down"], None]
        assert row["sent"] == 3
        assert row["counts"] == counts
        assert row["warnings"] == []
