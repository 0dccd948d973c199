"""Three calls of modules of which the first can't be traced; prints JSON.

For each call: is it right; hits, misses, bypasses and traces so far.
"""

import json
import threading

import torch
from torch import nn

from npugx_cache import cache_compile


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lock, self.linear = threading.Lock(), nn.Linear(3, 3)

    def forward(self, x):
        if not hasattr(self, "doubles"):
            with self.lock:
                self.linear.register_forward_hook(lambda module, args, out: out * 2)
                self.doubles = True
        return self.linear(x)


class Never(nn.Module):
    """Can't be traced, and no call changes that."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x):
        with self.lock:
            return x + 1


def traces():
    """How often this process asked Dynamo for a graph."""
    from torch._dynamo.utils import compilation_time_metrics

    return len(compilation_time_metrics.get("npugx_cache.capture", ()))


def main():
    results = {}
    for kind in (Lazy, Never):
        with torch.no_grad():
            plain, model = kind(), cache_compile(kind())
            rows, start = [], traces()
            for n in range(3):
                x = torch.full((2, 3), n + 0.5)
                right, info = torch.equal(model(x), plain(x)), model.forward.cache_info()
                rows.append([right, info.hits, info.misses, info.bypasses, traces() - start])
        results[kind.__name__] = rows
    print(json.dumps(results))


if __name__ == "__main__":
    main()
