"""A stock Qwen3 with random weights and two greedy generation loops, as users write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, StaticCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def build(layers: int, dtype: str) -> tuple[Any, torch.Tensor]:
    """Make the same model and the same prompt of 16 tokens in every process."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        # With the default of 0.02 the model repeats one token, and equal tokens would prove little.
        initializer_range=0.1,
    )
    model = Qwen3ForCausalLM(config).to(getattr(torch, dtype)).eval()
    return model, torch.randint(0, config.vocab_size, (1, 16))


def growing_ids(model: Callable[..., Any], ids: torch.Tensor, tokens: int) -> Iterator[int]:
    """Send the whole text through the model for every new token."""
    for _ in range(tokens):
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
        ids = torch.cat([ids, out.logits[:, -1:].argmax(-1)], dim=1)
        yield int(ids[0, -1])


def next_token(model: Any, ids: torch.Tensor, positions: torch.Tensor, kv: Any) -> torch.Tensor:
    out = model(input_ids=ids, position_ids=positions, past_key_values=kv)
    token: torch.Tensor = out.logits[:, -1:].argmax(-1)
    return token


def prefill(model: Any, ids: torch.Tensor, tokens: int) -> tuple[torch.Tensor, Any]:
    """Put the prompt into a static KV cache with room for more tokens."""
    kv = StaticCache(config=model.config, max_cache_len=ids.shape[1] + tokens)
    return next_token(model, ids, torch.arange(ids.shape[1])[None], kv), kv


def decode(
    step: Callable[..., Any], model: Any, token: torch.Tensor, kv: Any, positions: range
) -> Iterator[int]:
    """Send one token at a time, at its position in the KV cache."""
    for position in positions:
        token = step(model, token, torch.tensor([[position]]), kv)
        yield int(token)
