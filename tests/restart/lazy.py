"""Five calls of modules of which the first can't be traced; prints JSON.

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


class Packed(nn.Module):
    """Sets a flag and replaces a weight in its first call, which prints."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 3), requires_grad=False)
        self.packed = False

    def forward(self, x):
        if not self.packed:
            print(end="")
            self.weight.data = self.weight.data.t().contiguous()
            self.packed = True
        return x @ self.weight


class WithoutShapes(nn.Module):
    """Has no sizes before its first call, so that a restarted process can't compare them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.LazyLinear(3)

    def forward(self, x):
        return self.linear(x)


class Told(nn.Module):
    """Can be traced once somebody has set a flag, which happens after the second call."""

    def __init__(self):
        super().__init__()
        self.calls, self.noisy = 0, True

    def forward(self, x):
        if self.noisy:
            print(end="")
        return x * 3


class Counting(nn.Module):
    """Writes, at each call, what its refusal depends on."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, x):
        if self.count < 100:
            print(end="")
        self.count += 1
        return x + self.count


class Never(nn.Module):
    """Can't be traced, and no call changes that."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x):
        with self.lock:
            return x + 1


CALLS = 5


def traces():
    """How often this process asked Dynamo for a graph."""
    from torch._dynamo.utils import compilation_time_metrics

    return len(compilation_time_metrics.get("npugx_cache.capture", ()))


def seeded(model, x):
    torch.manual_seed(0)  # for the weights that a first call makes
    return model(x)


def main():
    results = {}
    for kind in (Lazy, Packed, WithoutShapes, Told, Counting, Never):
        with torch.no_grad():
            plain, model = kind(), cache_compile(kind())
            rows, start = [], traces()
            for n in range(CALLS):
                if kind is Told and n == 2:
                    plain.noisy = model.noisy = False
                x = torch.full((2, 3), n + 0.5)
                results_of_both = []
                for each in (model, plain):
                    torch.manual_seed(0)  # for the weights that a first call makes
                    results_of_both.append(each(x))
                info = model.forward.cache_info()
                rows.append(
                    [
                        torch.equal(*results_of_both),
                        info.hits,
                        info.misses,
                        info.bypasses,
                        traces() - start,
                    ]
                )
        results[kind.__name__] = rows
    print(json.dumps(results))


if __name__ == "__main__":
    main()
