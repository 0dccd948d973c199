"""Functions and modules of einops; prints what each gave and its counters, as JSON.

python programs_einops.py [NAME=PATTERN ...]: with another pattern for some of the functions.
"""

from __future__ import annotations

import hashlib
import json
import sys

import torch
from einops import einsum, pack, rearrange, reduce, repeat, unpack
from einops.layers.torch import Rearrange
from torch import nn

from npugx_cache import cache_compile

PATTERNS = {
    "rearrange": "b c (h s) -> b h (c s)",
    "repeat": "b c h -> b c (h n)",
    "reduce": "b c (h s) -> b h",
    "einsum": "b c h, d h -> b c d",
} | dict(each.split("=", 1) for each in sys.argv[1:])


def rearranged(x):
    return rearrange(x, PATTERNS["rearrange"], s=2) * 2


def repeated(x):
    return repeat(x, PATTERNS["repeat"], n=2) + 1


def reduced(x):
    return reduce(x, PATTERNS["reduce"], "max", s=2)


def multiplied(x):
    return einsum(x, x[0], PATTERNS["einsum"])


def split(x):
    return rearrange(x, "(b c) h (e f g) -> f e g b c h", b=1, c=2, e=2, f=2, g=1)


def packed(x):
    together, shapes = pack([x, x[:, 0]], "b *")
    return unpack(together * 2, shapes, "b *")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Rearrange("b c h -> b h c"), nn.Linear(3, 5))

    def forward(self, x):
        return repeat(self.layers(x), "b h d -> b (n h) d", n=2)


torch.manual_seed(0)
TARGETS = {
    "rearrange": rearranged,
    "repeat": repeated,
    "reduce": reduced,
    "split": split,
    "einsum": multiplied,
    "pack": packed,
    "layers": Model().eval().forward,
}


def parts(value):
    return [part for each in value for part in parts(each)] if type(value) is list else [value]


def main():
    x, rows = torch.randn(2, 3, 4), {}
    with torch.no_grad():
        for name, function in TARGETS.items():
            cached = cache_compile(function)
            got = [parts(cached(x)) for _ in range(3)]
            wanted = parts(function(x))
            for each in got:
                torch.testing.assert_close(each, wanted)
            content = b"".join(part.contiguous().numpy().tobytes() for part in got[-1])
            info = cached.cache_info()
            rows[name] = {
                "digest": hashlib.sha256(content).hexdigest(),
                "counts": [info.hits, info.misses, info.bypasses],
                "reasons": [str(each) for each in cached.explain()],
            }
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
