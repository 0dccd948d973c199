"""A Qwen3 whose sequence grows, cold and restarted: how many entries, and never a wrong result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parent / "growth.py"
GROWING = range(16, 273)
CASES = {
    "dynamic": (True, "whole", [*GROWING]),
    "as torch.compile": (None, "whole", [16, 17, 18, 40]),
    "static": (False, "whole", [16, 17, 16]),
    "marked": (None, "marked", [16, 17, 40]),
    "decoding": (True, "step", [16, *range(17, 40)]),
}
# Hits, misses and bypasses after each call.
COLD = {
    "dynamic": [[0, 1, 0]] * len(GROWING),
    "as torch.compile": [[0, 1, 0], [0, 2, 0], [0, 2, 0], [0, 2, 0]],
    "static": [[0, 1, 0], [0, 2, 0], [0, 2, 0]],
    "marked": [[0, 1, 0]] * 3,
    "decoding": [[0, 1, 0]] + [[0, 2, 0]] * 23,
}


@pytest.fixture(scope="module")
def counts(once):
    def make(surroundings):
        wanted = json.dumps(CASES)
        return {phase: surroundings.run(SCRIPT, wanted) for phase in ("cold", "warm")}

    return once("growth", make)


@pytest.mark.parametrize("case", CASES)
def test_a_growing_sequence_takes_as_many_entries_as_it_should(counts, case):
    assert counts["cold"][case] == COLD[case]


@pytest.mark.parametrize("case", CASES)
def test_a_restarted_worker_compiles_none_of_them_again(counts, case):
    *_, last = counts["warm"][case]
    assert last == [COLD[case][-1][1], 0, 0]
