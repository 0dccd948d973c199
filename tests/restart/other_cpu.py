"""An LSTM of 16 bits, called once; prints as JSON whether it is right, and what the cache did.

python other_cpu.py DTYPE
"""

import json
import logging
import sys

import torch

from npugx_cache import cache_compile


class Texts(logging.Handler):
    def __init__(self):
        super().__init__(logging.INFO)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def main():
    log, texts = logging.getLogger("npugx_cache"), Texts()
    log.addHandler(texts)
    log.setLevel(logging.INFO)
    torch.manual_seed(0)
    dtype = getattr(torch, sys.argv[1])
    layer, x = torch.nn.LSTM(8, 8).to(dtype).eval(), torch.randn(3, 2, 8).to(dtype)

    @cache_compile
    def f(x):
        return layer(x)

    with torch.no_grad():
        found, wanted = f(x), layer(x)
    info = f.cache_info()
    right = torch.equal(found[0], wanted[0]) and torch.equal(found[1][1], wanted[1][1])
    print(json.dumps([[right, info.hits, info.misses, info.bypasses], texts.texts]))


if __name__ == "__main__":
    main()
