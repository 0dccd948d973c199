"""A small Qwen3, eager and cached with each option: prints JSON.

python qwen3.py DEVICE FOLDER OPTION ...
"""

import hashlib
import json
import logging
import sys

import torch

device, folder, wanted = sys.argv[1], sys.argv[2], sys.argv[3:]
if device == "npu":
    import npu_sim

    npu_sim.install()

from flips import flips  # noqa: E402
from transformers import Qwen3Config, Qwen3ForCausalLM, StaticCache  # noqa: E402

from npugx_cache import cache_compile  # noqa: E402


def model_of(layers):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval().to(device)


def growing(model, call, tokens):
    """The whole sequence anew for each token, without a mask."""
    ids = torch.arange(tokens + 1)[None].to(device)
    logits = []
    for _ in range(tokens):
        logits.append(call(input_ids=ids, use_cache=False).logits.clone())
        ids = torch.cat([ids, logits[-1][:, -1:].argmax(-1)], 1)
    return logits


def decoding(model, call, tokens):
    """A prompt and then one token at a time, keys and values in a StaticCache."""
    cache = StaticCache(config=model.config, max_cache_len=16)
    ids, start, logits = torch.arange(4)[None].to(device), 0, []
    for _ in range(tokens):
        position = torch.arange(start, start + ids.shape[1]).to(device)
        out = call(input_ids=ids, past_key_values=cache, position_ids=position[None])
        logits.append(out.logits.clone())
        start += ids.shape[1]
        ids = logits[-1][:, -1:].argmax(-1)
    return logits


def close(left, right):
    """Equal up to rounding, and the same greedy tokens."""
    pairs = [(a.cpu(), b.cpu()) for a, b in zip(left, right, strict=True)]
    tokens = all(torch.equal(a.argmax(-1), b.argmax(-1)) for a, b in pairs)
    return tokens and all(torch.allclose(a, b, rtol=1.3e-6, atol=1e-5) for a, b in pairs)


def digest(logits):
    plain = b"".join(bytes(each.cpu().contiguous().view(torch.uint8).flatten()) for each in logits)
    return hashlib.sha256(plain).hexdigest()


# A GPU captures a shape at its second call: each loop runs twice there, and a little longer.


def run(model, want, flip, tokens):
    found = {}
    for loop, dynamic in ((growing, True), (decoding, None)):
        options = {"capture_limit": 256, **flip.options}
        cached = cache_compile(
            model.forward, dynamic=dynamic, options=options, backend=flip.backend
        )
        got = [loop(model, cached, tokens) for _ in range(2 if device == "cuda" else 1)][-1]
        info, captures = cached.cache_info(), cached._state.captures
        found[loop.__name__] = {
            "close": close(got, want[loop.__name__]),
            "digest": digest(got),
            "misses": info.misses,
            "bypasses": info.bypasses,
            "graphs": len(captures.graphs),
            "replays": sum(graph.replays for graph in captures.graphs.values()),
            "kernels": npu_sim.static_kernels() if device == "npu" else 0,
        }
    return found


logging.basicConfig(level=logging.WARNING)
torch.set_num_threads(1)
results = {}
with torch.no_grad():
    for layers, tokens, names in ((2, 4, {"default"}), (1, 4 if device == "cuda" else 2, None)):
        model = model_of(layers)
        want = {loop.__name__: loop(model, model.forward, tokens) for loop in (growing, decoding)}
        for flip in flips(device, folder):
            if flip.name in (names or wanted) and flip.name not in results:
                results[flip.name] = run(model, want, flip, tokens)
print(json.dumps(results))
