"""A number that somebody adds to Python's builtins is a condition of the graph that reads it.

Each start is a process of its own: Dynamo notes once in a process which names builtins have.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.thorough

PROGRAM = """
import builtins, json, sys, types
import torch

builtins.NPUGX_SCALE = json.loads(sys.argv[1])

from npugx_cache import cache_compile

def f(x):
    return x * NPUGX_SCALE

cached = cache_compile(f)
x = torch.tensor([-1.0, 2.0])
result, info = cached(x), cached.cache_info()
print(json.dumps([torch.equal(result, f(x)), info.hits, info.misses]))
"""


def test_a_number_in_builtins_is_compared_at_a_restart(surroundings, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    starts = [surroundings.run(program, number) for number in ("2.0", "2.0", "9.0", "1", "true")]
    assert starts == [
        [True, 0, 1],
        [True, 1, 0],
        [True, 0, 1],
        [True, 0, 1],
        [True, 0, 1],
    ]
