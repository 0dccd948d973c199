"""Tensor-parallel models on 2 and 4 gloo ranks: cold, restarted, and with other meshes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from npugx_cache import version

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("tensor_parallel.py")
PHASES = (
    *((2, "cold"), (2, "restarted"), (4, "cold"), (4, "restarted")),
    *((2, "one store is empty"), (2, "other groups")),
)
# By default gloo asks the resolver for the name of the host, and takes whatever answers.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}

REFUSED = {
    "checked": "DTensor.from_local(run_check=True) calls collectives while it is traced",
    "leaves": "a DTensor, which holds other tensors, leaves the graph",
    "own_rule": "the rule by which aten._softmax.default is split up is not torch's own",
}
"""The programs that run eagerly, and words of the reason."""

SHARED = {"plain_parts", "mlp", "attention", "sequence", "even", "rows", "columns", "copies"}
"""Programs of which all ranks have equal graphs: the work and the sizes are split evenly."""

OF_A_RANK = {"size_of_part", "part_of_mesh", "place_in_group", "uneven"}
"""Programs whose graph has the place of the rank in it."""

OLD = version.minor_version(torch.__version__) < (2, 13)
if OLD:
    OF_A_RANK -= {"size_of_part", "uneven"}
all_cached = pytest.mark.skipif(
    OLD, reason="torch before 2.13 compares placements while it traces, which is refused"
)


@pytest.fixture(scope="module")
def ranks(once):
    def make(surroundings):
        found = {}
        for world, phase in PHASES:
            place = surroundings.folder / f"{world} {phase}"
            started = []
            for rank in range(world):
                other = phase == "one store is empty" and rank == 1
                own = {"NPUGX_CACHE_DIR": str(surroundings.folder / "empty")} if other else {}
                args = ("-W", "ignore", SCRIPT, rank, world, place, phase)
                started.append(surroundings.start(*args, **LOOPBACK, **own))
            found[f"{world} {phase}"] = [worker.result() for worker in started]
        return {"ranks": found, "entries": surroundings.listing()}

    return once("tensor_parallel", make)


def of(ranks, name, world, phase):
    """What each rank got of one program."""
    return [found[name] for found in ranks["ranks"][f"{world} {phase}"]]


def counts(found):
    return [[each[name] for name in ("hits", "misses", "bypasses")] for each in found]


@pytest.mark.parametrize(("world", "phase"), PHASES)
def test_every_rank_gets_eagers_results(ranks, world, phase):
    for rank in ranks["ranks"][f"{world} {phase}"]:
        assert [name for name, found in rank.items() if not found["equal"]] == []


@all_cached
@pytest.mark.parametrize("world", [2, 4])
def test_a_restart_hits_on_every_rank_and_gives_what_the_cold_run_gave(ranks, world):
    cold, restarted = (ranks["ranks"][f"{world} {phase}"] for phase in ("cold", "restarted"))
    for name in cold[0].keys() - REFUSED.keys():
        found = of(ranks, name, world, "restarted")
        assert counts(found) == [[1, 0, 0]] * world, name
        assert [each["result"] for each in found] == [each[name]["result"] for each in cold], name
    assert len(restarted) == world


@all_cached
@pytest.mark.parametrize("name", sorted(SHARED))
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_with_equal_graphs_share_an_entry(ranks, name, world):
    found = of(ranks, name, world, "cold")
    same_as_even = name == "rows"  # `even` has made that entry for two ranks
    assert sum(each["misses"] for each in found) == (0 if same_as_even and world == 2 else 1)


@pytest.mark.parametrize("name", sorted(OF_A_RANK))
def test_a_graph_that_depends_on_the_rank_is_not_shared(ranks, name):
    for each in of(ranks, name, 2, "cold"):
        assert each["misses"] == 1


@all_cached
@pytest.mark.parametrize("name", ["columns", "copies", "backwards", "longer", "named_otherwise"])
def test_another_placement_mesh_or_global_size_misses(ranks, name):
    """All ranks hold the same parts as for `rows`, `long` and `named`, which ran before."""
    for world in (2, 4):
        assert sum(each["misses"] for each in of(ranks, name, world, "cold")) >= 1


@all_cached
def test_another_world_size_misses(ranks):
    """The store has the entries of two ranks when four begin."""
    for name in ("mlp", "attention", "sequence", "rows", "size_of_mesh"):
        assert sum(each["misses"] for each in of(ranks, name, 4, "cold")) == 1, name


@all_cached
def test_groups_with_other_names_miss(ranks):
    assert [each["misses"] for each in of(ranks, "slice", 2, "other groups")] == [1, 1]
    # The mesh of all ranks has the default group, whose name is the same.
    assert [each["hits"] for each in of(ranks, "mlp", 2, "other groups")] == [1, 1]


@all_cached
@pytest.mark.parametrize("name", ["plain_parts", "mlp", "attention", "sequence", "uneven"])
def test_a_rank_that_compiles_and_one_that_hits_run_the_same_collectives(ranks, name):
    assert counts(of(ranks, name, 2, "one store is empty")) == [[1, 0, 0], [0, 1, 0]]


@all_cached
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_runs_eagerly_and_the_reason_is_stored(ranks, name):
    for world, phase in PHASES:
        assert counts(of(ranks, name, world, phase)) == [[0, 0, 1]] * world
    reasons = [each["reason"] for each in ranks["entries"] if each["kind"] == "bypass"]
    assert any(REFUSED[name] in each for each in reasons), reasons
