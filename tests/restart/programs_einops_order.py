"""An einops layer that holds the given axes of a group in the order of a set; prints JSON."""

from __future__ import annotations

import json

import torch
from einops.layers.torch import Rearrange

from npugx_cache import cache_compile


def main():
    layer = Rearrange("b (n p q) -> b n p q", p=2, q=3)
    x = torch.arange(48.0).view(4, 12)
    cached = cache_compile(layer.forward)
    got = [cached(x) for _ in range(2)]
    for each in got:
        torch.testing.assert_close(each, x.view(4, 2, 2, 3), rtol=0, atol=0)
    info = cached.cache_info()
    row = {
        "order": str(layer._multirecipe[2].input_composition_known_unknown),
        "counts": [info.hits, info.misses, info.bypasses],
        "reasons": [str(each) for each in cached.explain()],
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
