"""Functions of einx; prints what each gave and its counters, as JSON.

python programs_einx.py [NAME=PATTERN ...] [sizes=N] [backend=NAME] [edited]: with another pattern
for some of the functions, another number for the sizes that patterns name, another backend in
force, or another function inside einx.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys

import einx  # before torch, as sorted imports have it
import torch
from torch import nn

from npugx_cache import cache_compile

CHANGES = dict(each.split("=", 1) for each in sys.argv[1:] if "=" in each)
PATTERNS = {
    "id": "b c (h s) -> b h (c s)",
    "sum": "b [c] h",
    "mean": "b c [h]",
    "dot": "b c h, d h -> b c d",
    "vmap": "b c [h]",
} | CHANGES
SIZES = int(CHANGES.get("sizes", "2"))


def rearranged(x):
    return einx.id(PATTERNS["id"], x, s=SIZES) * 2


def summed(x):
    return einx.sum(PATTERNS["sum"], x)


def centred(x):
    mean = einx.mean(PATTERNS["mean"], x)
    return einx.subtract("b c h, b c -> b c h" if mean.shape[1] == 4 else "b c h, b h", x, mean)


def multiplied(x):
    return einx.dot(PATTERNS["dot"], x, x[0])


def mapped(x):
    return einx.max(PATTERNS["vmap"], x, backend="torch.vmap")


def masked(x):
    return einx.where("b c h, b c h, ", x > 0, x, float("-inf"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5))

    def forward(self, x):
        return einx.softmax("b c [d]", einx.dot("b c [h], [h] d -> b c d", x, self.weight))


torch.manual_seed(0)
TARGETS = {
    "id": rearranged,
    "sum": summed,
    "mean": centred,
    "dot": multiplied,
    "vmap": mapped,
    "where": masked,
    "model": Model().eval().forward,
}


def edit():
    """Edit what runs the code that einx writes, as an editor or another version of einx would."""
    from einx._src.frontend import api

    original = api._split_tensors

    def _split_tensors(signature, args, kwargs):
        args, kwargs, tensors = original(signature, args, kwargs)
        return args, kwargs, [_moved(each) for each in tensors]

    def _moved(value):
        is_moved = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value + 1 if is_moved else value

    api._split_tensors = _split_tensors


def main():
    if "edited" in sys.argv:
        edit()
    x, rows = torch.randn(2, 4, 4), {}
    chosen = CHANGES.get("backend")
    with torch.no_grad(), einx.backend.get(chosen) if chosen else contextlib.nullcontext():
        for name, function in TARGETS.items():
            cached = cache_compile(function)
            got = [cached(x) for _ in range(3)]
            for each in got:
                torch.testing.assert_close(each, function(x))
            content = got[-1].contiguous().numpy().tobytes()
            info = cached.cache_info()
            rows[name] = {
                "digest": hashlib.sha256(content).hexdigest(),
                "counts": [info.hits, info.misses, info.bypasses],
                "reasons": [str(each) for each in cached.explain()],
            }
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
