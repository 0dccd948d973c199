"""Call a Qwen3 with sequences of the lengths given; print the counters after each call, as JSON.

python growth.py {"NAME": [DYNAMIC, WAY, [LENGTH, ...]], ...}
"""

import json
import os
import sys

import torch
import zoo
from transformers import DynamicCache

from npugx_cache import cache_compile


def whole(call, length):
    """The whole sequence, with a mask that hides its first token."""
    ids = torch.arange(length)[None] % 96
    mask = torch.ones_like(ids)
    mask[0, 0] = 0
    return call(input_ids=ids, attention_mask=mask, use_cache=False)


def marked(call, length):
    ids = torch.arange(length)[None] % 96
    torch._dynamo.mark_dynamic(ids, 1)
    return call(input_ids=ids, use_cache=False)


class Step:
    """One token more, after `length` of them, with the cache of the call before."""

    def __init__(self, model):
        self.cache = DynamicCache(config=model.config)

    def __call__(self, call, length):
        new = length - self.cache.get_seq_length()
        ids = torch.arange(length)[None, -new:] % 96
        return call(input_ids=ids, past_key_values=self.cache)


def run(model, store, dynamic, way, lengths):
    ways = {"whole": lambda: whole, "marked": lambda: marked, "step": lambda: Step(model)}
    plain, compiled = ways[way](), ways[way]()
    cached = cache_compile(model.forward, dynamic=dynamic, cache_dir=store)
    counts = []
    for length in lengths:
        want, got = plain(model, length).logits, compiled(cached, length).logits
        torch.testing.assert_close(got, want)
        info = cached.cache_info()
        counts.append([info.hits, info.misses, info.bypasses])
    return counts


def main(wanted):
    torch.manual_seed(0)
    build = zoo.of_transformers("Qwen3ForCausalLM", **zoo.LLAMA | {"max_position_embeddings": 512})
    model = build().eval()
    with torch.no_grad():
        found = {}
        for name, each in json.loads(wanted).items():
            # In a store of its own: all cases call one function.
            found[name] = run(model, f"{os.environ['NPUGX_CACHE_DIR']}/{name}", *each)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
