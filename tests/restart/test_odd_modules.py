import pytest

pytestmark = pytest.mark.thorough
"""What a process may have among its modules besides modules: a trace passes it by."""

PROGRAM = """
import json, sys
import torch
from npugx_cache import cache_compile

class Slots:
    __slots__ = ()

sys.modules["blocked"], sys.modules["odd"] = None, Slots()  # None: what blocks an import

def f(x):
    return x * 2

cached = cache_compile(f)
right = torch.equal(cached(torch.ones(2)), torch.full((2,), 2.0))
print(json.dumps([right, *cached.cache_info()[:3]]))
"""


def test_a_blocked_import_and_an_object_without_a_namespace_are_no_bypass(surroundings):
    script = surroundings.folder / "odd.py"
    script.write_text(PROGRAM)
    assert surroundings.run(script) == [True, 0, 1, 0]
    assert surroundings.run(script) == [True, 1, 0, 0]
