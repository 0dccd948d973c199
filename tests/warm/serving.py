"""A worker, or a script that warms: calls the functions that are named, prints counts as JSON.

python serving.py [--dir FOLDER] NAME:SIZES...   such as `scale:2,3`
"""

import json
import sys

import model
import torch

from npugx_cache import cache_compile, metrics


def main(*calls):
    folder = None
    if calls[:1] == ("--dir",):
        folder, calls = calls[1], calls[2:]
    right, cached = True, {}
    for call in calls:
        name, _, sizes = call.partition(":")
        function = getattr(model, name)
        x = torch.ones([int(size) for size in sizes.split(",")])
        with torch.no_grad():
            expected = function(x)
            if name not in cached:
                cached[name] = cache_compile(function, cache_dir=folder)
            right = right and torch.equal(cached[name](x), expected)
    found = metrics()
    counts = {each: getattr(found, each) for each in ("hits", "misses", "bypasses", "stored")}
    print(json.dumps(counts | {"right": right, "reasons": found.miss_reasons}))


if __name__ == "__main__":
    main(*sys.argv[1:])
