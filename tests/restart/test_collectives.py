"""Collectives in a graph: 2 and 4 gloo processes, cold and restarted, one entry for all ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parent / "collectives.py"
PHASES = ((2, "cold"), (2, "restarted"), (4, "cold"), (4, "restarted"))
# By default gloo asks the resolver for the name of the host, and takes whatever answers.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}

ENTRIES = {
    "everything": lambda _: 1,
    "default_group": lambda _: 1,
    "the_group_of_all": lambda _: 1,
    "a_group_of_two": lambda world: world // 2,
    "a_group_that_is_passed": lambda _: 1,
    "a_group_by_its_ranks": lambda _: 1,
    "asks_for_its_rank": lambda world: world,
    "all_to_all": lambda _: 1,
    "all_to_all_of_sizes": lambda world: world,
}
"""How many entries the ranks make of a program together."""


@pytest.fixture(scope="module")
def ranks(once):
    def make(surroundings):
        found = {}
        for world, phase in PHASES:
            place = surroundings.folder / f"{world} {phase}"
            started = [
                surroundings.start("-W", "ignore", SCRIPT, rank, world, place, **LOOPBACK)
                for rank in range(world)
            ]
            found[f"{world} {phase}"] = [worker.result() for worker in started]
        return {"ranks": found, "entries": surroundings.listing()}

    return once("collectives", make)


@pytest.mark.parametrize(("world", "phase"), PHASES)
def test_every_rank_gets_eagers_results(ranks, world, phase):
    for rank in ranks["ranks"][f"{world} {phase}"]:
        assert [name for name, found in rank.items() if not found["equal"]] == []


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", ENTRIES)
def test_ranks_with_equal_graphs_share_an_entry_and_a_restart_hits(ranks, world, name):
    cold = [rank[name] for rank in ranks["ranks"][f"{world} cold"]]
    assert sum(found["misses"] for found in cold) == ENTRIES[name](world)
    assert sum(found["hits"] for found in cold) == world - ENTRIES[name](world)
    for rank in ranks["ranks"][f"{world} restarted"]:
        assert rank[name] == {"equal": True, "hits": 1, "misses": 0, "bypasses": 0}


def test_another_number_of_ranks_is_another_entry(ranks):
    graphs = [entry for entry in ranks["entries"] if entry["kind"] == "graph"]
    assert len(graphs) == sum(entries(world) for entries in ENTRIES.values() for world in (2, 4))


def test_what_dynamo_does_not_trace_is_refused_by_name(ranks):
    for phase in ("2 cold", "4 restarted"):
        assert all(rank["broadcast_in_place"]["bypasses"] == 1 for rank in ranks["ranks"][phase])
    (reason,) = {entry["reason"] for entry in ranks["entries"] if entry["kind"] == "bypass"}
    assert "dist.broadcast(y, 0)" in reason
