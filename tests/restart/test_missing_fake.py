import pytest

pytestmark = pytest.mark.thorough
"""A custom operator without a fake runs uncached, and the reason says what to write."""

CODE = """
import json, torch
from npugx_cache import cache_compile
from npugx_cache.errors import Uncacheable
LIBRARY = torch.library.Library("npugx_missing", "DEF")
LIBRARY.define("two(Tensor x, int n, *, float by=1.0) -> (Tensor, Tensor)")
LIBRARY.impl("two", lambda x, n, *, by=1.0: (x * n, x + by), "CPU")

@torch.library.custom_op("npugx_missing::one", mutates_args=())
def one(x: torch.Tensor) -> torch.Tensor:
    return x + 1

def strictly(function):
    try:
        cache_compile(function, strict=True)(torch.ones(2))
    except Uncacheable as error:
        return error.reason

def uses_two(x):
    return torch.ops.npugx_missing.two(x, 2)[1]

def uses_one(x):
    return torch.ops.npugx_missing.one(x)

print(json.dumps([
    strictly(uses_two), strictly(uses_one), cache_compile(uses_two)(torch.ones(2)).tolist(),
]))
"""


def test_a_missing_fake_is_one_clear_error_with_what_to_write(surroundings):
    two, one, result = surroundings.run("-c", CODE)
    assert "operator npugx_missing::two has no fake" in two
    assert '@torch.library.register_fake("npugx_missing::two") def _(x, n, *, by=1.0):' in two
    assert "return torch.empty_like(x), torch.empty_like(x)" in two
    assert '@torch.library.register_fake("npugx_missing::one") def _(x):' in one
    assert result == [2.0, 2.0]
