"""Quantizers of vector-quantize-pytorch."""

import torch
from vector_quantize_pytorch import FSQ, ResidualVQ, VectorQuantize


def vector_quantize(cache):
    model = cache(VectorQuantize(dim=16, codebook_size=8).eval())
    x = torch.randn(2, 5, 16)
    return lambda: [model(x), model(x[:1])]


def residual(cache):
    model = cache(ResidualVQ(dim=16, codebook_size=8, num_quantizers=2).eval())
    x = torch.randn(2, 5, 16)
    return lambda: [model(x), model(x * 2)]


def finite_scalar(cache):
    model = cache(FSQ(levels=[8, 5, 5]).eval())
    x = torch.randn(2, 5, 3)
    return lambda: [model(x), model(x * 2)]
