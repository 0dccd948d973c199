"""Functions and layers of einops in models as people write them."""

import torch
from einops import einsum, pack, rearrange, reduce, repeat, unpack
from einops.layers.torch import Rearrange, Reduce
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=16, heads=2):
        super().__init__()
        self.heads, self.to_qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = rearrange(
            self.to_qkv(x), "b n (three h d) -> three b h n d", three=3, h=self.heads
        )
        weights = einsum(q, k, "b h i d, b h j d -> b h i j").softmax(-1)
        mixed = einsum(weights, v, "b h i j, b h j d -> b h i d")
        return self.out(rearrange(mixed, "b h n d -> b n (h d)"))


def attention(cache):
    model = cache(Attention().eval())
    inputs = [torch.randn(2, n, 16) for n in (4, 6, 8)]
    return lambda: [model(x) for x in inputs]


def attention_bfloat16(cache):
    model = cache(Attention().eval().bfloat16())
    x = torch.randn(2, 4, 16).bfloat16()
    return lambda: [model(x), model(x[:1])]


def layers(cache):
    model = nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4),
        nn.Linear(48, 16),
        Reduce("b n c -> b c", "mean"),
    )
    model = cache(model.eval())
    inputs = [torch.randn(2, 3, 8, 8), torch.randn(1, 3, 8, 16)]
    return lambda: [model(x) for x in inputs]


def class_token(cache):
    token = torch.randn(1, 1, 16)

    def pooled(x):
        tokens, shapes = pack([repeat(token, "1 1 d -> b 1 d", b=len(x)), x], "b * d")
        first, rest = unpack(tokens * 2, shapes, "b * d")
        return first + reduce(rest, "b (n two) d -> b two d", "max", two=2)

    pooled = cache(pooled)
    inputs = [torch.randn(2, 6, 16), torch.randn(3, 6, 16)]
    return lambda: [pooled(x) for x in inputs]
