"""What lives on after the first call of a process: `python kept_alive.py NAME`; prints JSON.

Automatic garbage collection is off, as servers switch it off, so that only reference counts free.
"""

import gc
import json
import sys
import weakref
from dataclasses import dataclass

import torch

from npugx_cache import cache_compile


class Cache:
    def __init__(self):
        self.total = torch.zeros(2, 3)


@dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor


def multiplied(x, cache):
    return x * 2


def written(x, cache):
    cache.total = cache.total + x
    return cache.total * 2


def branched(x, cache):
    return torch.cond(x.sum() > 0, lambda y: y + cache.total, lambda y: y - cache.total, (x,))


def caught(x, cache):
    try:
        raise KeyError(str(x.shape))
    except KeyError:
        return x + cache.total


def refused(x, cache):
    print("a graph break", file=sys.stderr)
    return x + cache.total


def paired(x, cache):
    pair = Pair(x, cache.total)
    return pair.first + pair.second


def called(cached):
    """Call once with objects that nothing else refers to. Returns the result, and the objects."""
    x, cache = torch.full((2, 3), 2.0), Cache()
    references = {"x": weakref.ref(x), "cache": weakref.ref(cache)}
    references["total"] = weakref.ref(cache.total)
    return cached(x, cache), references


def main(name, *, frozen):
    function = globals()[name]
    expected = called(function)[0]
    cached = cache_compile(function)
    gc.collect()
    if frozen:
        gc.freeze()
    else:
        gc.disable()
    enabled = gc.isenabled()
    result, references = called(cached)
    row = {
        "right": torch.equal(result, expected),
        "counts": list(cached.cache_info()[:3]),
        "alive": [each for each, reference in references.items() if reference() is not None],
        "as before": gc.isenabled() == enabled,
        "frozen": gc.get_freeze_count() > 0,
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main(sys.argv[1], frozen="frozen" in sys.argv)
