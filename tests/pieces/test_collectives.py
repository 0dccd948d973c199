"""Collectives in graphs that others traced: ranks share an entry where their graphs are equal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough
SCRIPT = Path(__file__).with_name("collectives.py")
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
WORLD = 2

ENTRIES = {"functional": (1, 1), "in_place": (1, 1), "breaks": (2, 2), "of_its_own_group": (1, 2)}
"""How many graphs each rank has of a program, and how many entries the ranks make together."""


def test_ranks_share_an_entry_where_their_graphs_are_equal(surroundings):
    found = {}
    for phase in ("cold", "restarted"):
        place = surroundings.folder / phase
        started = [
            surroundings.start("-W", "ignore", SCRIPT, rank, WORLD, place, **LOOPBACK)
            for rank in range(WORLD)
        ]
        found[phase] = [worker.result() for worker in started]
    for name, (graphs, entries) in ENTRIES.items():
        cold = [rank[name] for rank in found["cold"]]
        assert all(rank["equal"] for rank in cold), name
        assert sum(rank["misses"] for rank in cold) == entries, name
        assert sum(rank["hits"] for rank in cold) == graphs * WORLD - entries, name
        for rank in found["restarted"]:
            expected = {"equal": True, "hits": graphs, "misses": 0, "bypasses": 0}
            assert rank[name] == expected, name
