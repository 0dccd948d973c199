"""Image operations of kornia."""

import kornia
import torch
from torch import nn


class Edges(nn.Module):
    def forward(self, x):
        x = kornia.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5))
        return kornia.filters.sobel(kornia.color.rgb_to_grayscale(x))


def edges(cache):
    model = cache(Edges())
    inputs = [torch.rand(1, 3, 16, 16), torch.rand(2, 3, 16, 24)]
    return lambda: [model(x) for x in inputs]


def colours(cache):
    def forward(x):
        hsv = kornia.color.rgb_to_hsv(x)
        lab = kornia.color.rgb_to_lab(x)
        return kornia.color.hsv_to_rgb(hsv), kornia.color.lab_to_rgb(lab)

    forward = cache(forward)
    x = torch.rand(1, 3, 8, 8)
    return lambda: [forward(x), forward(x * 0.5)]


def warp(cache):
    def forward(x, angle):
        turned = kornia.geometry.transform.rotate(x, angle)
        return kornia.geometry.transform.resize(turned, (12, 12))

    forward = cache(forward)
    x = torch.rand(2, 3, 16, 16)
    return lambda: [forward(x, torch.tensor([a, -a])) for a in (10.0, 30.0)]


def enhance(cache):
    model = nn.Sequential(
        kornia.enhance.Normalize(torch.tensor([0.5] * 3), torch.tensor([0.2] * 3)),
        kornia.enhance.AdjustBrightness(0.1),
        kornia.filters.MedianBlur((3, 3)),
    )
    model = cache(model)
    x = torch.rand(1, 3, 16, 16)
    return lambda: [model(x), model(x.flip(2))]


def canny(cache):
    model = cache(kornia.filters.Canny())
    x = torch.rand(1, 3, 16, 16)
    return lambda: [model(x)[0], model(x * 0.7)[0]]
