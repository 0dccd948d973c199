"""Two files with the same text: what a trace of one file met is not said of the other file."""

import pytest

SAME = """
import torch

def f(x):
    return torch.func.vmap(lambda row: row * 2)(x)
"""

PROGRAM = """
import importlib, json, sys
import torch
from npugx_cache import cache_compile

sys.path.insert(0, sys.argv[1])
counts = []
for name in sys.argv[2:]:
    cached = cache_compile(importlib.import_module(name).f)
    right = torch.equal(cached(torch.ones(2, 2)), torch.full((2, 2), 2.0))
    counts.append([right, *cached.cache_info()[:3]])
print(json.dumps(counts))
"""


@pytest.mark.thorough
def test_a_restart_that_loads_only_one_of_two_equal_files_hits(surroundings):
    script = surroundings.folder / "equal.py"
    script.write_text(PROGRAM)
    for name in ("one", "other"):
        (surroundings.folder / f"{name}.py").write_text(SAME)
    cold = surroundings.run(script, surroundings.folder, "one", "other")
    assert cold == [[True, 0, 1, 0], [True, 0, 1, 0]]
    assert surroundings.run(script, surroundings.folder, "other") == [[True, 1, 0, 0]]
