"""`tp_plan="auto"` of transformers on 2 and 4 gloo ranks: cold and restarted, against eager."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).with_name("programs_tp_plan.py")
# By default gloo asks the resolver for the name of the host, and takes whatever answers.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}


@pytest.fixture(scope="module")
def ranks(once):
    pytest.importorskip("accelerate", reason="tp_plan needs it: bash tests/packages/run")

    def make(surroundings):
        model = surroundings.folder / "model"
        surroundings.run(SCRIPT, model)
        found = {}
        for world in (2, 4):
            for phase in ("cold", "restarted"):
                args = ("-W", "ignore", SCRIPT, model)
                place = surroundings.folder / f"{world} {phase}"
                started = [
                    surroundings.start(*args, rank, world, place, **LOOPBACK)
                    for rank in range(world)
                ]
                found[f"{world} {phase}"] = [worker.result(600) for worker in started]
        return found

    return once("tp_plan", make)


@pytest.mark.parametrize("world", [2, 4])
def test_every_rank_compiles_its_graph_and_gives_eagers_result(ranks, world):
    """Each has a graph of its own, because each has other rows of the vocabulary."""
    for found in ranks[f"{world} cold"]:
        assert found["is_split"]
        assert found["equal"]
        assert found["counts"] == [0, 1, 0]


@pytest.mark.parametrize("world", [2, 4])
def test_a_restart_hits_on_every_rank(ranks, world):
    cold, restarted = ranks[f"{world} cold"], ranks[f"{world} restarted"]
    assert [found["counts"] for found in restarted] == [[1, 0, 0]] * world
    assert all(found["equal"] for found in restarted)
    assert [each["result"] for each in restarted] == [each["result"] for each in cold]
