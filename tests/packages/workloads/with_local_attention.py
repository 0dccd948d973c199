"""Attention in windows, of local-attention."""

import torch
from local_attention import LocalAttention, LocalTransformer


def windows(cache):
    options = {"dim": 8, "window_size": 4, "causal": True, "look_backward": 1}
    model = cache(LocalAttention(**options, autopad=True).eval())
    q, k, v = torch.randn(3, 1, 2, 10, 8)
    mask = torch.ones(1, 10, dtype=torch.bool)
    return lambda: [model(q, k, v), model(q, k, v, mask=mask)]


def transformer(cache):
    model = LocalTransformer(
        num_tokens=32,
        dim=16,
        depth=1,
        max_seq_len=32,
        dim_head=8,
        heads=2,
        local_attn_window_size=4,
    )
    model = cache(model.eval())
    x = torch.arange(1, 11).view(1, 10)
    return lambda: [model(x), model(x.flip(1))]
