"""Weights that bitsandbytes has quantised, in classes of parameters with attributes."""

import bitsandbytes as bnb
import torch
from torch import nn


def _quantised(layer, cache):
    plain = nn.Linear(128, 64)
    layer.load_state_dict(plain.state_dict())
    # On the CPU the weight is quantised by `to`.
    model = cache(nn.Sequential(layer.to("cpu"), nn.GELU()).eval())
    x = torch.linspace(-1, 1, 3 * 128).view(3, 128)
    return lambda: [model(x), model(x[:1])]


def nf4(cache):
    layer = bnb.nn.Linear4bit(128, 64, quant_type="nf4", compute_dtype=torch.float32)
    return _quantised(layer, cache)


def fp4(cache):
    layer = bnb.nn.Linear4bit(128, 64, quant_type="fp4", compute_dtype=torch.float32)
    return _quantised(layer, cache)


def int8(cache):
    layer = bnb.nn.Linear8bitLt(128, 64, has_fp16_weights=False, threshold=6.0)
    return _quantised(layer, cache)
