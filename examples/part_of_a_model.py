"""Cache the language model of a vision-language model, which is not one graph. Run it twice."""

from typing import Any

import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from npugx_cache import cache_compile

IMAGE, START, END = 253, 254, 255

torch.manual_seed(0)
text: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True},
}
vision: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 64,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 1],
    "patch_size": 4,
}
tokens: dict[str, Any] = {
    "image_token_id": IMAGE,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}
config: Any = Qwen3VLConfig(text_config=text, vision_config=vision, **tokens)
model: Any = Qwen3VLForConditionalGeneration(config).eval()  # type: ignore[no-untyped-call]

grid = torch.tensor([[1, 8, 8]])  # 64 patches, of which 4 become a token
image = [START, *[IMAGE] * 16, END]
ids = torch.tensor([[1, 2, 3, *image, 4, 5]])
request = {
    "input_ids": ids,
    "attention_mask": torch.ones_like(ids),
    "pixel_values": torch.randn(64, 3 * 2 * 4 * 4),
    "image_grid_thw": grid,
    "mm_token_type_ids": (ids == IMAGE).int(),
}
with torch.no_grad():
    expected = model(**request).logits
    # cache_compile(model) would say why the whole is no graph, and name this part:
    cache_compile(model.model.language_model)
    logits = model(**request).logits
assert torch.equal(logits, expected)
print("result:", logits[0, -1].argmax().item())
print(model.model.language_model.forward.cache_info())
