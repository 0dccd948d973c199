"""A worker with three cached functions. Prints what `.explain()` says of each call.

python worker.py SIZE SCALE
"""

import json
import os
import sys

import torch

from npugx_cache import cache_compile

SIZE, SCALE = int(sys.argv[1]), float(sys.argv[2])


@cache_compile
def scale(x):
    return x * SCALE


@cache_compile
def shift(x):
    return x + 1


@cache_compile
def branch(x):
    return x + 1 if x.sum() > 0 else x - 1


def said(cached):
    cached(torch.ones(SIZE, 3))
    return [[each.entry, list(each.reasons)] for each in cached.explain()]


if dtype := os.environ.get("DTYPE_OF_AUTOCAST"):
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", getattr(torch, dtype))
before = [list(each.explain()) for each in (scale, shift, branch)]
assert before == [[], [], []]
print(json.dumps({"scale": said(scale), "shift": said(shift), "branch": said(branch)}))
