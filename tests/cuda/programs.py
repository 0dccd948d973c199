"""Programs on one device, eager and cached; prints JSON as tests/restart/run.py does.

python programs.py DEVICE
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "restart"))

from run import run

DEVICE = sys.argv[1]


def made(module):
    torch.manual_seed(0)
    return module().eval().to(DEVICE)


def tensor(*size):
    numbers = torch.arange(float(torch.Size(size).numel())) / 7
    return numbers.sin().reshape(size).to(DEVICE)


def three_calls(call, *sizes):
    """A GPU captures a shape at its second call, and replays it from then on."""
    return [call(tensor(*size)) for size in sizes for _ in range(3)]


def perceptron(cached):
    model = made(lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)))
    return three_calls(cached(model.forward), (2, 8), (5, 8), (3, 8))


def convolutions(cached):
    model = made(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.MaxPool2d(2)))
    return three_calls(cached(model.forward), (2, 2, 6, 6))


def attention(cached):
    def attend(x):
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    return three_calls(cached(attend), (1, 2, 8, 16))


def a_cache_written_in_place(cached):
    def step(x, kv, position):
        kv.index_copy_(0, position, x)
        return (kv * 2).sum(0)

    call, kv = cached(step), torch.zeros(4, 8, device=DEVICE)
    places = [torch.tensor([n], device=DEVICE) for n in range(4)]
    return [*(call(tensor(1, 8) + n, kv, place) for n, place in enumerate(places)), kv]


def views_and_passed_through(cached):
    def several(x):
        y = x * 2
        return x, x[1:], y, y.t()

    return three_calls(cached(several), (3, 4))


PROGRAMS = (perceptron, convolutions, attention, a_cache_written_in_place, views_and_passed_through)

if __name__ == "__main__":
    print(json.dumps({program.__name__: run(program) for program in PROGRAMS}))
