"""A decode step of Qwen3 with a StaticCache copies no more than eager does."""

from __future__ import annotations

import collections

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from npugx_cache import cache_compile

pytestmark = pytest.mark.thorough

COPIES = ("clone", "copy_", "_to_copy", "cat", "index_put", "index_copy", "slice_scatter")


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func._schema.name.partition("::")[2]] += 1
        return func(*args, **(kwargs or {}))


def made():
    from transformers import Qwen3Config, Qwen3ForCausalLM, StaticCache

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    model = Qwen3ForCausalLM(config).eval()
    cache = StaticCache(config=config, max_cache_len=16)
    mask = torch.ones(1, 16, dtype=torch.long)
    prompt = torch.ones(1, 4, dtype=torch.long)
    with torch.no_grad():
        model(prompt, past_key_values=cache, cache_position=torch.arange(4), use_cache=True)

    def step(token, at):
        return model(
            token,
            position_ids=at[None],
            past_key_values=cache,
            cache_position=at,
            use_cache=True,
            attention_mask=mask,
        ).logits

    return step, cache


def test_a_decode_step_copies_no_more_than_eager(tmp_path):
    token, at = torch.ones(1, 1, dtype=torch.long), torch.tensor([4])
    plain, plain_cache = made()
    with torch.no_grad(), Counting() as eager:
        want = plain(token, at)
    step, cache = made()
    cached = cache_compile(step, cache_dir=tmp_path)
    got = cached(token, at)
    torch.testing.assert_close(got, want)
    reference, _ = made()
    unoptimised = cache_compile(reference, cache_dir=tmp_path / "reference", backend="aot_eager")
    torch.testing.assert_close(got, unoptimised(token, at), rtol=0, atol=0)
    for mine, theirs in zip(cache.layers, plain_cache.layers, strict=True):
        torch.testing.assert_close(mine.keys, theirs.keys)
        torch.testing.assert_close(mine.values, theirs.values)
    assert cached.cache_info().stored == 1
    [known] = cached._state.specialisations
    with torch.no_grad(), Counting() as counting:  # a call of `cached` would run eager under it
        again = known.run(token, at)
    torch.testing.assert_close(again, want)
    ours = counting.calls
    assert ours["index_copy_"] == eager.calls["index_copy_"] == 4, (ours, eager.calls)
    assert {name: ours[name] for name in COPIES if ours[name] > eager.calls[name]} == {}
    assert sum(ours.values()) <= sum(eager.calls.values())
