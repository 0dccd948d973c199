"""Runs models under the hooks of accelerate with `fullgraph=None`, and compares with eager.

python breaking_accelerate.py prints {name: {"right", "counts", "warnings", "traced"}}.
"""

import json
import logging
import sys
from pathlib import Path

import torch

from npugx_cache import cache_compile

sys.path.insert(0, str(Path(__file__).parent / "workloads"))
import with_accelerate

logged = []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: logged.append(record.getMessage())
logging.getLogger("npugx_cache").addHandler(handler)


def results(name, cache):
    torch.manual_seed(0)
    with torch.no_grad():
        return getattr(with_accelerate, name)(cache)()


def run(name):
    made = []

    def cache(target):
        made.append(cache_compile(target, fullgraph=None))
        return made[-1]

    logged.clear()
    found = results(name, cache)
    (model,) = made
    return {
        "right": all(map(torch.allclose, found, results(name, lambda target: target))),
        "counts": model.forward.cache_info()[:4],
        "warnings": list(logged),
        "traced": "npugx_cache.trace" in sys.modules,
    }


print(json.dumps({name: run(name) for name in ("dispatched", "dispatched_inside", "offloaded")}))
