"""A function that runs a generator expression; the text of this file is also executed as a text."""

import json
import sys

import torch

from npugx_cache import cache_compile


def run(x):
    first, second = (part * 2 for part in x.chunk(2, -1))
    return first + second


def traces():
    if "torch._dynamo" not in sys.modules:
        return 0
    from torch._dynamo.utils import compilation_time_metrics

    return len(compilation_time_metrics.get("npugx_cache.capture", ()))


cached, x = cache_compile(run), torch.ones(2, 4)
assert torch.equal(cached(x), run(x))
counts = cached.cache_info()[:3]
reasons = [reason for each in cached.explain() for reason in each.reasons]
print(json.dumps({"counts": counts, "reason": reasons[0], "traces": traces()}))
