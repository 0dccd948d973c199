"""Cache a model of transformers, and call its `generate()`. Run it twice."""

import time
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from npugx_cache import cache_compile

torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    initializer_range=0.1,  # so that the tokens of random weights differ
)
model: Any = Qwen3ForCausalLM(config).eval()  # type: ignore[no-untyped-call]
prompt = torch.randint(0, config.vocab_size, (1, 8))
request = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), **request)

cache_compile(model)
start = time.perf_counter()
tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), **request)
assert torch.equal(tokens, expected)
print("result:", tokens[0].tolist())
print(f"took {time.perf_counter() - start:.2f} s")  # the first run compiles three graphs
print(model.forward.cache_info())  # the second run needs two of them
