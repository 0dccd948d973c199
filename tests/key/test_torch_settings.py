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
    mode = runtime.ONE_RANK, "True"
    assert mode not in runtime.dynamo_settings()
    with compiler_config.patch({runtime.ONE_RANK: True}):
        assert mode in runtime.dynamo_settings()
