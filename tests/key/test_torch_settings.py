"""Settings that newer versions of torch have: a default is a default, a mode has its own key."""

from __future__ import annotations

import pytest
import torch
from torch.compiler import config as compiler_config

from npugx_cache.private import runtime


def test_the_default_precision_of_products_counts_the_same_set_or_not():
    before = runtime.global_state()
    torch.set_float32_matmul_precision("highest")
    assert runtime.global_state() == before


@pytest.mark.skipif(not hasattr(compiler_config, runtime.ONE_RANK), reason="since torch 2.15")
def test_a_compile_on_one_rank_for_all_has_a_key_of_its_own():
    mode = runtime.ONE_RANK, True
    assert mode not in runtime.dynamo_settings()
    with compiler_config.patch({runtime.ONE_RANK: True}):
        assert mode in runtime.dynamo_settings()


SETTINGS = """
import json, random, torch
from torch._dynamo import config as dynamo
from torch._inductor import config as inductor
from npugx_cache.key.environment import factors, library_factors

classes = [type(name, (torch.Tensor,), {"__module__": "m"}) for name in "ABCDEFGH"]
dynamo.traceable_tensor_subclasses.update(classes)
dynamo.skipfiles_inline_module_allowlist = {"a": [{("x", frozenset("abcdefgh"))}, set("stuvw")]}
inductor.pre_grad_fusion_options = {"b": {"c": set("abcdefgh")}}
rows = [*factors(frozenset()), *library_factors()]
print(json.dumps([row for row in rows if row[0].partition(".")[0] in ("dynamo", "inductor")]))
"""


@pytest.mark.thorough
def test_the_text_of_a_setting_does_not_depend_on_the_order_of_sets_in_it(surroundings):
    found = [surroundings.run("-c", SETTINGS, PYTHONHASHSEED=seed) for seed in ("1", "2", "3")]
    names = {name for name, _ in found[0]}
    assert "dynamo.traceable_tensor_subclasses" in names
    assert "dynamo.skipfiles_inline_module_allowlist" in names
    assert "inductor.pre_grad_fusion_options" in names
    assert found[0] == found[1] == found[2]
