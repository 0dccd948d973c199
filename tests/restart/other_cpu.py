"""An LSTM of 16 bits, called once; prints as JSON whether it is right, and what the cache did.

python other_cpu.py DTYPE [dynamic]
"""

import json
import sys

import torch
from run import warnings_logged

from npugx_cache import cache_compile


def main():
    torch.manual_seed(0)
    dtype = getattr(torch, sys.argv[1])
    layer, x = torch.nn.LSTM(8, 8).to(dtype).eval(), torch.randn(3, 2, 8).to(dtype)

    @cache_compile(dynamic=sys.argv[2:] == ["dynamic"])
    def f(x):
        return layer(x)

    with torch.no_grad(), warnings_logged() as lines:
        found, wanted = f(x), layer(x)
    info = f.cache_info()
    right = torch.equal(found[0], wanted[0]) and torch.equal(found[1][1], wanted[1][1])
    print(json.dumps([[right, info.hits, info.misses, info.bypasses], lines]))


if __name__ == "__main__":
    main()
