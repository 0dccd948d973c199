"""A hit of a worker is known to those who look at the folder later, and to the eviction."""

from __future__ import annotations

import textwrap

import pytest

PROGRAM = """
    import json, torch
    from npugx_cache import cache_compile

    def doubled(x):
        return x * 2

    cached = cache_compile(doubled)
    cached(torch.ones(3))
    print(json.dumps(cached.cache_info()._asdict()))
"""


@pytest.mark.thorough
def test_a_restored_graph_is_a_hit_of_its_entry(surroundings):
    script = surroundings.folder / "script.py"
    script.write_text(textwrap.dedent(PROGRAM))
    assert surroundings.run(script)["misses"] == 1
    (stored,) = surroundings.listing()
    assert (stored["hits"], stored["saved_seconds"]) == (0, 0.0)
    assert surroundings.run(script)["hits"] == 1
    (used,) = surroundings.listing()
    assert used["hits"] == 1
    assert used["saved_seconds"] == used["cost_seconds"] > 0
    assert used["last_used"] > stored["last_used"]
