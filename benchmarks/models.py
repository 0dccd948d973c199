"""What is measured: transformers' Qwen3 from its configuration, and a function that does little.

Random weights from seed 0, float32; batch 1, 16 tokens, an attention mask of ones, no KV cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def qwen3(layers: int) -> tuple[Any, dict[str, Any]]:
    """The model, and the arguments of a call."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
    )
    model: Any = Qwen3ForCausalLM(config)
    model.eval()
    ids = torch.randint(0, config.vocab_size, (1, 16))
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}


def tiny(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + y).relu()
