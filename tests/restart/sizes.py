"""Call one function with tensors of the sizes given; print the counters after each call, as JSON.

python sizes.py FUNCTION DYNAMIC SIZE ...
"""

import ast
import json
import sys

import torch
from torch import nn
from torch.nn import functional

from npugx_cache import cache_compile


def tensor(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def averages(x):
    return x.sum(0) / x.shape[0]


def counts(x, n):
    return x * n + n


def makes_tensors(x, n):
    return x * torch.tensor([n, 1, n + x.shape[0]]), torch.tensor(n), torch.tensor([[n / 2], [n]])


class Cache:
    def __init__(self, length):
        self.keys, self.length = tensor(2, length, 4), length


def attends(cache, x):
    keys = torch.cat([cache.keys, x], dim=1)
    return torch.softmax(x @ keys.transpose(1, 2), -1) @ keys * cache.length


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(width, 3)

    def forward(self, x):
        return self.linear(x)


class Attention(nn.Module):
    """Causal attention with rotary-like positions, as it grows while text is generated."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        batch, length, width = x.shape
        turns = torch.arange(length, dtype=x.dtype)[:, None] * torch.linspace(0.1, 1, width)
        q, k, v = self.qkv(x * turns.cos()).view(batch, length, 3, 2, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


def in_ranges(x):
    return x * 2 if x.shape[0] < 6 else x.sum(0) if x.shape[0] < 9 else x.flip(0)


def in_quarters(x):
    return x.view(4, -1, 3).sum(0) if x.shape[0] % 4 == 0 else x[:4].mean(0)


def in_pairs(x, y):
    return x @ y if x.shape[0] == y.shape[1] else (x * 2) @ y


def marked(n):
    x = tensor(n, 3)
    torch._dynamo.mark_dynamic(x, 0)
    return (x,)


CALLS = {
    "rows": (averages, lambda n: (tensor(n, 3),)),
    "ints": (counts, lambda n: (tensor(3), n)),
    "tensors": (makes_tensors, lambda n: (tensor(3), n)),
    "cache": (attends, lambda n: (Cache(n), tensor(2, 1, 4))),
    "growing": (Attention().forward, lambda n: (tensor(1, n, 8),)),
    "ranges": (in_ranges, lambda n: (tensor(n, 3),)),
    "quarters": (in_quarters, lambda n: (tensor(n, 3),)),
    "pairs": (in_pairs, lambda n: (tensor(n, 3), tensor(3, n if n < 7 else n + 1))),
    "marked": (averages, marked),
    "width4": (Net(4).forward, lambda n: (tensor(n, 4),)),
    "width5": (Net(5).forward, lambda n: (tensor(n, 5),)),
}


def main(name, dynamic, *sizes):
    function, arguments = CALLS[name]
    cached = cache_compile(function, dynamic=ast.literal_eval(dynamic))
    rows = []
    with torch.no_grad():
        for size in map(int, sizes):
            torch.testing.assert_close(cached(*arguments(size)), function(*arguments(size)))
            info = cached.cache_info()
            rows.append([info.hits, info.misses, info.bypasses])
    print(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
