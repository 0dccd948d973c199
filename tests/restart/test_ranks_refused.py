"""Ranks whose model can't be stored neither wait for each other nor trace again (P2, P5)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).with_name("ranks_refused.py")
WORLD = 4


def start(surroundings, name, mode, ranks=range(WORLD)):
    folder = surroundings.folder / name
    folder.mkdir()
    workers = [surroundings.start(SCRIPT, rank, len(ranks), folder, mode) for rank in ranks]
    rows = [worker.result() for worker in workers]
    assert all(right for right, *_ in rows)
    assert all(counts[1:] == [0, 1, 0] for *_, counts in rows)
    return [traced for _, traced, _ in rows]


def test_one_rank_of_four_traces_and_none_after_a_restart(surroundings):
    assert sum(start(surroundings, "cold", "alike")) == 1
    assert start(surroundings, "warm", "alike") == [0] * WORLD


def test_ranks_that_differ_trace_at_the_same_time_once_one_refusal_is_known(surroundings):
    start(surroundings, "first", "alone", [WORLD])  # of another rank: it holds for none of these
    assert start(surroundings, "all", "together") == [1] * WORLD
    assert start(surroundings, "again", "together") == [0] * WORLD
