"""Models that torchao quantized."""

import torch
from torch import nn
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    quantize_,
)


def perceptron(dtype=torch.float32):
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).eval().to(dtype)


def quantized(cache, config, dtype=torch.float32):
    model = perceptron(dtype)
    quantize_(model, config)
    model = cache(model)
    x = torch.randn(4, 32, dtype=dtype)
    return lambda: [model(x), model(x[:2])]


def int8_weights(cache):
    return quantized(cache, Int8WeightOnlyConfig())


def int8_weights_bfloat16(cache):
    return quantized(cache, Int8WeightOnlyConfig(), torch.bfloat16)


def int8_both(cache):
    return quantized(cache, Int8DynamicActivationInt8WeightConfig())
