"""`readable` shows which passes ran, in their order, and what each removed."""

from __future__ import annotations

import re

import pytest

CODE = """
import json, torch
from npugx_cache import cache_compile, readable_cache
def f(x):
    return (x * 2).clone().view(3) + 1
cached = cache_compile(f, dynamic=False)
cached(torch.ones(3))
entry = next(iter(cached._state.specialisations)).entry
print(json.dumps(readable_cache(entry, print_output=False)))
"""
ROW = re.compile(r"# (\w+): (\d+) rewrites, (-?\d+) nodes removed")


@pytest.mark.thorough
def test_readable_prints_the_passes_and_how_many_nodes_each_removed(surroundings):
    rows = ROW.findall(surroundings.run("-W", "ignore", "-c", CODE))
    names = [name for name, _, _ in rows]
    assert names.index("remove_noop_ops") < names.index("inplace_pass") < len(names)
    assert sum(int(removed) for _, _, removed in rows) == 2, "the copy and the view"
