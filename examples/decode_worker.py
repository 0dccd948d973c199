"""A stock Qwen3 with random weights that answers texts with texts, one token at a time."""

import asyncio
import inspect
import os
import time
from collections.abc import Iterator

import torch
from qwen3_generation import build, decode, next_token
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import StaticCache

from npugx_cache import cache_compile

IMPORTED = time.time()
LONGEST = 64  # prompt and answer together, in tokens
health: dict[str, object] = {"state": "cold", "imported": IMPORTED}

model, _ = build(int(os.environ.get("LAYERS", "2")), "float32")
prefill = cache_compile(next_token, dynamic=True)
step = cache_compile(next_token, dynamic=False, warm="plan")  # on a CPU nothing is captured


def make_tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    wanted = trainers.BpeTrainer(
        vocab_size=model.config.vocab_size, initial_alphabet=letters, show_progress=False
    )
    made.train_from_iterator([inspect.getsource(asyncio.base_events)], wanted)
    return made


tokenizer = make_tokenizer()


def answer(prompt: str, tokens: int) -> Iterator[str]:
    # At least two tokens, because a prompt of one is another graph.
    ids = torch.tensor([tokenizer.encode(f"user: {prompt}").ids[: LONGEST - tokens]])
    kv = StaticCache(config=model.config, max_cache_len=LONGEST)
    token = prefill(model, ids, torch.arange(ids.shape[1])[None], kv)
    yield tokenizer.decode([int(token)])
    for each in decode(step, model, token, kv, range(ids.shape[1], ids.shape[1] + tokens - 1)):
        yield tokenizer.decode([each])


def warm_up() -> None:
    """Restore both graphs, or compile them, and run each once."""
    list(answer("hello", 2))
    info = prefill.cache_info(), step.cache_info()
    hits, compiled = sum(each.hits for each in info), sum(each.misses for each in info)
    health.update(hits=hits, compiled=compiled, warm_after=time.time() - IMPORTED, state="warm")


if __name__ == "__main__":  # npugx-cache warm decode_worker.py
    warm_up()
    print(health)
