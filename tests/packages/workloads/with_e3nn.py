"""Equivariant layers of e3nn, which generate code of their own."""

import torch
from e3nn import o3
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.product = o3.FullyConnectedTensorProduct("4x0e + 2x1o", "1x0e + 1x1o", "4x0e + 2x1o")
        self.linear = o3.Linear("4x0e + 2x1o", "2x0e")

    def forward(self, x, vectors):
        directions = o3.spherical_harmonics("1x0e + 1x1o", vectors, normalize=True)
        return self.linear(self.product(x, directions))


def layer(cache):
    model = cache(Layer().eval())
    x, vectors = torch.randn(5, 10), torch.randn(5, 3)
    return lambda: [model(x, vectors), model(x[:2], vectors[:2])]


def norm(cache):
    model = cache(nn.Sequential(o3.Linear("4x0e + 2x1o", "3x1o"), o3.Norm("3x1o")).eval())
    x = torch.randn(5, 10)
    return lambda: [model(x), model(x * 2)]
