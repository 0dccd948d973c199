"""Transformers of x-transformers."""

import torch
from x_transformers import (
    AutoregressiveWrapper,
    ContinuousTransformerWrapper,
    Decoder,
    Encoder,
    TransformerWrapper,
)


def decoder_flash(cache):
    model = cache(Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, attn_flash=True).eval())
    inputs = [torch.randn(1, 6, 16), torch.randn(2, 8, 16)]
    return lambda: [model(x) for x in inputs]


def encoder_relative_bias(cache):
    encoder = Encoder(dim=16, depth=1, heads=2, attn_dim_head=8, rel_pos_bias=True, ff_glu=True)
    model = cache(encoder.eval())
    x = torch.randn(2, 6, 16)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    return lambda: [model(x), model(x, mask=mask)]


def generate(cache):
    layers = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, rotary_pos_emb=True)
    net = TransformerWrapper(num_tokens=32, max_seq_len=32, attn_layers=layers)
    model = AutoregressiveWrapper(net).eval()
    model.net = cache(model.net)
    prompt = torch.tensor([[1, 2, 3]])
    return lambda: model.generate(prompt, 5, temperature=0.0, cache_kv=False)


def continuous(cache):
    layers = Encoder(dim=16, depth=1, heads=2, attn_dim_head=8, use_rmsnorm=True)
    model = ContinuousTransformerWrapper(dim_in=4, dim_out=3, max_seq_len=16, attn_layers=layers)
    model = cache(model.eval())
    x = torch.randn(2, 10, 4)
    return lambda: [model(x), model(x[:, :7])]
