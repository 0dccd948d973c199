"""Calls that each need another graph: `python storming.py NAME`; prints what became of them."""

import json
import logging
import sys

import torch

from npugx_cache import cache_compile

CALLS = 20


class Logging(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log = []

    def forward(self, x):
        self.log.append(x + 1)
        return x * 2


def main(name):
    texts = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: texts.append(record.getMessage())
    logging.getLogger("npugx_cache").addHandler(handler)
    if name == "list":
        plain, model = Logging(), Logging()
        cached = cache_compile(model).forward
        calls = [torch.ones(3)] * CALLS
    else:

        def plain(x):
            return x * 2

        cached = cache_compile(plain, dynamic=False)
        calls = [torch.ones(n + 1) for n in range(CALLS)]
    if name == "last":
        calls = calls[-2:]
    if name == "more":  # other sizes than those of "shapes"
        calls = [torch.ones(n + 101) for n in range(CALLS)]
    if name == "warm after a call":
        calls = calls[:1]
        cached(calls[0])
    if name.startswith("warm"):
        for x in calls:
            cached.warm(x)
    right = all(torch.equal(cached(x), plain(x)) for x in calls)
    first = torch.equal(cached(calls[0]), plain(calls[0]))  # what is bound goes on to be used
    return {"right": right and first, "info": cached.cache_info(), "warnings": texts}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
