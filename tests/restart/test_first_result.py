"""A graph whose first result is not the function's own is neither stored nor run (P1)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from npugx_cache import version

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("first_results.py")
DIFFERS = "the first result of its compiled graph is not the function's own"
WANTED = {
    "replaced": ("(tensor([2., 2., 2.]), tensor([2.1932, 2.1932, 2.1932]))", "result[1]"),
    "decomposed": (
        "{'first': tensor([2., 2., 2.]), 'last': tensor([0.8427, 0.8427, 0.8427])}",
        "result['last']",
    ),
}


@pytest.fixture
def starts(once):
    """Two workers, one after the other, and what the store holds after each of them."""

    def make(surroundings):
        found = []
        for _ in range(2):
            found.append((surroundings.run(SCRIPT, "differing"), surroundings.listing()))
        return found

    return once("first results", make)


@pytest.mark.parametrize("name", WANTED)
def test_a_wrong_graph_is_refused_with_the_output_that_differs(starts, name):
    (cold, listed), _ = starts
    result, path = WANTED[name]
    assert cold[name]["got"] == [result, result]
    assert cold[name]["counts"] == [0, 0, 2, 0]
    assert cold[name]["reasons"] == {"differs": 2}
    (warning,) = cold[name]["warnings"]
    assert DIFFERS in warning
    assert warning.endswith(f"what differs: {path}")
    assert {entry["kind"] for entry in listed} == {"bypass"}
    assert sum(DIFFERS in entry["reason"] for entry in listed) == len(listed) == 3


def test_a_strict_function_and_one_that_is_warmed_tell_the_difference(starts):
    rows, _ = starts[0]
    assert all(each.startswith(f"Uncacheable: {DIFFERS}") for each in rows["strict"]["got"])
    (refused,) = rows["warm"]["refused"]
    assert DIFFERS in refused


def test_the_next_worker_does_not_try(starts):
    (cold, listed), (warm, again) = starts
    assert warm["replaced"]["reasons"] == {"differs": 2}
    assert warm["replaced"]["got"] == cold["replaced"]["got"]
    assert [each["entry"] for each in again] == [each["entry"] for each in listed]


def test_without_the_comparison_the_wrong_result_is_served(surroundings):
    row = surroundings.run(SCRIPT, "differing", NPUGX_CACHE_VERIFY="off")["replaced"]
    assert "2.9242" in row["got"][0]
    assert row["counts"] == [0, 1, 0, 1]


def test_what_rounding_changes_is_no_difference(surroundings):
    rows = surroundings.run(SCRIPT, "alike")
    assert rows == surroundings.beside("off").run(SCRIPT, "alike", NPUGX_CACHE_VERIFY="off")
    for name, row in rows.items():
        assert row["counts"] == [0, 1, 0, 1], name
        assert row["uncompared"] == row["warnings"] == [], name


EFFECTS = {
    "in_place": "it writes to its inputs",
    "to_a_global_tensor": "it writes to its inputs",
    "by_batch_norm": "it writes to its inputs",
    "of_an_operator": "it calls npugx_first.double, an operator of another package",
    "where_it_is_not_traced": "it asks whether it is traced",
}
REFUSED = {"when_an_object_ends": "__del__ is not traced"}
if version.minor_version(torch.__version__) < (2, 13):
    REFUSED["counts_in_a_class"] = "builtin operator `setattr` with argument types ['type'"
if version.minor_version(torch.__version__) < (2, 12):
    REFUSED["of_an_iterator"] = "method `__next__` of class `count`"


def test_what_can_be_seen_besides_the_result_happens_once(surroundings):
    eager = surroundings.run(SCRIPT, "effects", NPUGX_CACHE="off")
    found = surroundings.run(SCRIPT, "effects")
    assert found["left"] == eager["left"]
    for name, row in found["rows"].items():
        assert row["got"] == eager["rows"][name]["got"], name
        if name in REFUSED:
            assert row["counts"] == [0, 0, 2, 0], name
            (warning,) = row["warnings"]
            assert REFUSED[name] in warning
            continue
        assert row["reasons"] == {}, name
        for line in row["uncompared"]:
            assert EFFECTS.get(name, "it writes to something that was there before") in line, name
        assert len(row["uncompared"]) == row["counts"][1] > 0, name


UNCOMPARED = {
    "asks": "it asks whether it is traced",
    "unset": "aten.new_empty.default leaves memory as it was",
    "chooses": "aten.argmax.default makes a choice that rounding may change",
    "rounds": "makes a choice that rounding may change",
    "large": "it would take 36 MiB, and 1 MiB are the most",
    "compiles": "the function begins a compile of its own",
    "passes": "a pass of the user's may change numbers on purpose",
}


def test_what_may_differ_though_the_graph_is_right_is_not_compared(surroundings):
    rows = surroundings.run(SCRIPT, "uncompared")
    assert set(rows) == set(UNCOMPARED)
    for name, row in rows.items():
        assert row["counts"] == [0, 1, 0, 1], name
        (line,) = row["uncompared"]
        assert line.startswith("DEBUG")
        assert UNCOMPARED[name] in line
