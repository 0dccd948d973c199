"""Weights in the types of GGUF, as diffusers loads them: bytes in a class of parameters."""

import gguf
import numpy as np
import torch
from diffusers.quantizers.gguf.utils import GGUFLinear, GGUFParameter
from torch import nn


def _quantised(kind, cache):
    plain = torch.randn(64, 256).numpy()
    weight = torch.from_numpy(np.array(gguf.quants.quantize(plain, kind)))
    layer = GGUFLinear(256, 64, bias=True, compute_dtype=torch.float32)
    layer.weight = GGUFParameter(weight, quant_type=kind)
    model = cache(nn.Sequential(layer, nn.GELU()).eval())
    x = torch.linspace(-1, 1, 3 * 256).view(3, 256)
    return lambda: [model(x), model(x[:1])]


def q8_0(cache):
    return _quantised(gguf.GGMLQuantizationType.Q8_0, cache)


def q5_1(cache):
    return _quantised(gguf.GGMLQuantizationType.Q5_1, cache)


def q4_0(cache):
    return _quantised(gguf.GGMLQuantizationType.Q4_0, cache)


def bf16(cache):
    return _quantised(gguf.GGMLQuantizationType.BF16, cache)
