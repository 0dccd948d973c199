"""Collectives in a graph: 2 and 4 gloo processes, cold and restarted, one entry for all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "collectives.py"
PHASES = ((2, "cold"), (2, "restarted"), (4, "cold"), (4, "restarted"))


@pytest.fixture(scope="module")
def ranks(once):
    def make(surroundings):
        found = {}
        for world, phase in PHASES:
            place = surroundings.folder / f"{world} {phase}"
            started = [
                surroundings.start("-W", "ignore", SCRIPT, rank, world, place)
                for rank in range(world)
            ]
            found[f"{world} {phase}"] = [worker.result() for worker in started]
        return {"ranks": found, "entries": surroundings.listing()}

    return once("collectives", make)


@pytest.mark.parametrize(("world", "phase"), PHASES)
def test_every_rank_gets_eagers_results(ranks, world, phase):
    for rank in ranks["ranks"][f"{world} {phase}"]:
        assert all(found["equal"] for found in rank.values())


@pytest.mark.parametrize("world", [2, 4])
def test_one_rank_compiles_for_all_and_a_restart_hits(ranks, world):
    cold = [rank["everything"] for rank in ranks["ranks"][f"{world} cold"]]
    assert sum(found["misses"] for found in cold) == 1
    assert sum(found["hits"] for found in cold) == world - 1
    for rank in ranks["ranks"][f"{world} restarted"]:
        assert rank["everything"] == {"equal": True, "hits": 1, "misses": 0, "bypasses": 0}


def test_another_number_of_ranks_is_another_entry(ranks):
    graphs = [entry for entry in ranks["entries"] if entry["kind"] == "graph"]
    assert len(graphs) == 2


def test_a_group_that_is_an_object_and_what_differs_by_rank_are_refused_by_name(ranks):
    for name in ("in_place", "by_rank"):
        assert all(rank[name]["bypasses"] == 1 for rank in ranks["ranks"]["2 cold"])
    reasons = [entry["reason"] for entry in ranks["entries"] if entry["kind"] == "bypass"]
    assert any("may do something else on each rank" in reason for reason in reasons)
    assert any("dist.group.WORLD" in reason for reason in reasons)
