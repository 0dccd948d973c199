"""Functions of einx."""

import einx
import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 8))

    def forward(self, x):
        x = einx.dot("b n c, c d -> b n d", x, self.weight)
        return einx.id("b (n two) d -> b n (two d)", x, two=2)


def mixer(cache):
    model = cache(Mixer().eval())
    inputs = [torch.randn(2, 4, 16), torch.randn(2, 6, 16)]
    return lambda: [model(x) for x in inputs]


def normalised(cache):
    def forward(x):
        mean = einx.mean("b [n] c", x)
        return einx.subtract("b n c, b c", x, mean)

    forward = cache(forward)
    x = torch.randn(2, 4, 16)
    return lambda: [forward(x), forward(x * 2)]


def gathered(cache):
    def forward(table, rows):
        return einx.get_at("[v] c, b n -> b n c", table, rows)

    forward = cache(forward)
    table, rows = torch.randn(10, 4), torch.tensor([[1, 2], [3, 4]])
    return lambda: [forward(table, rows), forward(table, rows + 1)]
