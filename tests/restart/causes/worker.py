"""A worker with a model of some layers: `python worker.py CHANGES`, with CHANGES as JSON."""

import contextlib
import json
import os
import sys

import decorators
import inner
import torch

from npugx_cache import cache_compile

CHANGES = json.loads(sys.argv[1])


class Config:
    eps = 1e-5


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(6))
        self.norm = torch.nn.LayerNorm(8)
        self.config = Config()

    def forward(self, x):
        for layer in self.layers:
            x = inner.level1(layer(x))
        if self.training:
            x = x + 1
        if os.environ.get("APP_MODE") == "fast":
            return x
        return decorators.shifted(self.norm(x) + self.config.eps)


model = Net().eval()
x = torch.ones(*CHANGES.get("size", (4, 8)))
if dtype := CHANGES.get("to"):
    model.to(getattr(torch, dtype))
x = x.to(getattr(torch, CHANGES.get("dtype", dtype or "float32")))
model.config.eps = CHANGES.get("eps", 1e-5)
inner.SCALE = CHANGES.get("scale", 2.0)
model.train(CHANGES.get("train", False))
torch.set_float32_matmul_precision(CHANGES.get("precision", "highest"))
around = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference": torch.inference_mode,
}.get(CHANGES.get("around"), contextlib.nullcontext)
cached = cache_compile(model.forward, **CHANGES.get("arguments", {}))
with around(), contextlib.suppress(RuntimeError):
    cached(x)
print(json.dumps(cached.cache_info()._asdict()))
