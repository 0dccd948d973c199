"""Models that accelerate dispatched: their forward is a functools.partial, with hooks."""

import torch
from accelerate import Accelerator, cpu_offload, dispatch_model
from torch import nn


def perceptron():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval()


def dispatched(cache):
    places = {"0": "cpu", "1": "cpu", "2": "cpu"}
    model = cache(dispatch_model(perceptron(), places, main_device="cpu", force_hooks=True))
    x = torch.randn(2, 8)
    return lambda: [model(x), model(x[:1])]


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = dispatch_model(perceptron(), {"": "cpu"}, main_device="cpu", force_hooks=True)

    def forward(self, x):
        return self.inner(x) * 2


def dispatched_inside(cache):
    model = cache(Outer().eval())
    x = torch.randn(2, 8)
    return lambda: [model(x), model(x[:1])]


def offloaded(cache):
    model = cache(cpu_offload(perceptron(), execution_device=torch.device("cpu")))
    x = torch.randn(2, 8)
    return lambda: [model(x), model(x[:1])]


def prepared(cache):
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = cache(accelerator.prepare_model(perceptron(), evaluation_mode=True))
    x = torch.randn(2, 8)
    return lambda: [model(x), model(x[:1])]
