"""Rotary positions of rotary-embedding-torch in an attention."""

import torch
from rotary_embedding_torch import RotaryEmbedding
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_qkv = nn.Linear(32, 96)
        self.rotary = RotaryEmbedding(dim=8)

    def forward(self, x):
        q, k, v = (
            each.unflatten(-1, (2, 16)).transpose(1, 2) for each in self.to_qkv(x).chunk(3, dim=-1)
        )
        q, k = self.rotary.rotate_queries_or_keys(q), self.rotary.rotate_queries_or_keys(k)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention(cache):
    model = cache(Attention().eval())
    inputs = [torch.randn(2, 6, 32), torch.randn(1, 4, 32)]
    return lambda: [model(x) for x in inputs]
