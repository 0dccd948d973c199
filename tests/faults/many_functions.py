"""Many cached functions in a process that may open few files: python many_functions.py FUNCTIONS

Prints how many results were right, the hits, the descriptors that were held more than before, and
what the process could open at the end.
"""

import json
import resource
import sys
import threading
from pathlib import Path

import torch

from npugx_cache import cache_compile

COUNT, LIMIT = int(sys.argv[1]), 256
resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))


class Scaled(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(factor))

    def forward(self, x):
        return (x * self.factor).relu()


def function():
    @cache_compile(dynamic=False)
    def doubled(x):
        return x * 2

    return doubled


def held():
    return len(list(Path("/proc/self/fd").iterdir()))


x, before, right, kept = torch.ones(2), held(), [], []


def call_some(first, count):
    for number in range(first, first + count):
        factor = float(number)
        if number % 2:
            kept.append(function())
            factor = 2.0
            result = kept[-1](x)
        else:
            kept.append(cache_compile(Scaled(factor)).forward)
            result = kept[-1](x)
        right.append(torch.equal(result, x * factor))


call_some(0, COUNT // 2)
threads = [
    threading.Thread(target=call_some, args=(COUNT // 2 + n * (COUNT // 8), COUNT // 8))
    for n in range(4)
]
for each in threads:
    each.start()
for each in threads:
    each.join()
infos = [each.cache_info() for each in kept]
grown = held() - before
answer = [sum(right), sum(each.hits for each in infos), sum(each.misses for each in infos)]
print(json.dumps([*answer, grown, bool(Path(__file__).read_text())]))
