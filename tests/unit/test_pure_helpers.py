"""Only listed helpers are called when conditions are checked, whatever a stored entry names."""

from __future__ import annotations

import einops.einops
import pytest
import torch

from npugx_cache import cache_compile
from npugx_cache.conditions import pure_helpers
from npugx_cache.conditions.data import Node, Step
from npugx_cache.conditions.evaluate import Scope, Unreachable, evaluate, prepare

ASKED = ["einops.einops", "_prepare_transformation_recipe"]
GIVEN = repr((("a b -> b a", "rearrange"), {"axes_names": (), "ndim": 2}))


def test_a_helper_is_called_with_the_recorded_arguments():
    (found,) = evaluate([prepare(Node(-1, Step.CALLED, [*ASKED, GIVEN]))], Scope({}, {}))
    assert type(found) is einops.einops.TransformRecipe
    assert found.axes_permutation == [1, 0]


@pytest.mark.parametrize(
    "asked",
    [
        ["os", "getcwd", "((), {})"],
        ["einops.einops", "rearrange", "((), {})"],
        [*ASKED, "__import__('os').getcwd()"],
        [*ASKED, "(('a b -> a', 'rearrange'), {})"],
    ],
)
def test_nothing_else_is_called(asked, monkeypatch):
    monkeypatch.setattr("os.getcwd", lambda: pytest.fail("called"))
    with pytest.raises(Unreachable):
        evaluate([prepare(Node(-1, Step.CALLED, asked))], Scope({}, {}))


def test_einops_finds_its_backend_before_the_first_lookup(monkeypatch):
    monkeypatch.setattr(einops._backends, "_type2backend", {})
    monkeypatch.setattr(pure_helpers, "_started", [])
    pure_helpers.start_libraries()
    assert torch.Tensor in einops._backends._type2backend


@pytest.mark.skipif(
    torch.__version__.startswith("2.12."), reason="torch 2.12 replaces functions of einops"
)
def test_a_graph_may_come_by_the_cached_functions_of_einops(tmp_path):
    """Their answers are no constants: a rule about functions that remember refused einops."""
    cached = cache_compile(
        lambda x: einops.rearrange(x, "a b -> b a") + einops.repeat(x[0], "b -> b a", a=2),
        cache_dir=tmp_path,
    )
    cached(torch.ones(2, 3))
    assert cached.cache_info().stored == 1, cached.explain()
