"""A model that torchao quantized, under torch.compile(backend="npugx"): prints what came of it."""

from __future__ import annotations

import json

import torch
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_

from npugx_cache.pieces import compiled


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    quantize_(model, Int8WeightOnlyConfig())
    takes = []

    def backend(graph_module, inputs):
        takes.extend(type(each).__name__ for each in inputs)
        return torch._dynamo.lookup_backend("npugx")(graph_module, inputs)

    x = torch.randn(4, 64)
    with torch.no_grad():
        difference = torch.compile(model, backend=backend)(x) - model(x)
    found = {
        "difference": float(difference.abs().max()),
        "quantized": sum("Int8" in each for each in takes),
        "info": list(compiled.counters.info(0)[:4]),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
