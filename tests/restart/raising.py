"""A worker whose first calls may raise in the function itself: `python raising.py CALLS`.

CALLS is JSON: the sizes of x at each call. Prints what each call came to, and the counts.
"""

import json
import sys

import torch

from npugx_cache import cache_compile

W = torch.ones(4, 4)


@cache_compile
def project(x):
    if x.shape[0] > 7:
        raise ValueError("too long")
    assert x.shape[0] != 5
    return (x @ W).relu()


def came_to(call):
    try:
        return call().sum().item()
    except (AssertionError, RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


answers = []
for size in json.loads(sys.argv[1]):
    x = torch.ones(*size)
    answers.append([came_to(lambda x=x: project(x)), came_to(lambda x=x: project.__wrapped__(x))])
info = project.cache_info()._asdict()
print(json.dumps({"answers": answers, "reasons": list(map(str, project.explain())), **info}))
