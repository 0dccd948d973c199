"""Ranks of one model that can't be stored: `python ranks_refused.py RANK WORLD FOLDER MODE`.

In the mode "together" each trace waits, inside of an operator, for the traces of all ranks: ranks
that trace one after the other never end. Prints the result's rightness, traces and counts.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

from npugx_cache import cache_compile
from tests import mid_trace

RANK, WORLD, FOLDER, MODE = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]


@torch.library.custom_op("ranks::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x):
    return torch.empty_like(x)


def wait_for_the_others(_):
    if MODE == "together":
        (FOLDER / f"tracing{RANK}").touch()
        while len(list(FOLDER.glob("tracing*"))) < WORLD:
            time.sleep(0.02)


mid_trace.at_each_input(wait_for_the_others)


class Shard(torch.nn.Module):
    """Its part of the work is a constant of the rank; the keys of its table have no name."""

    def __init__(self, part):
        super().__init__()
        self.part, self.table = part, {object(): 2.0}

    def forward(self, x):
        x = double(x) + self.part  # at first: torch before 2.13 gives up at the table
        for value in self.table.values():
            x = x * value
        return x


def traces():
    if "torch._dynamo" not in sys.modules:
        return 0
    from torch._dynamo.utils import compilation_time_metrics

    return len(compilation_time_metrics.get("npugx_cache.capture", ()))


x, part = torch.ones(3), 7 if MODE == "alike" else RANK
with torch.no_grad():
    wanted = Shard(part)(x)
(FOLDER / f"ready{RANK}.{os.getpid()}").touch()
while len(list(FOLDER.glob("ready*"))) < WORLD:
    time.sleep(0.02)
model = cache_compile(Shard(part))
right = torch.equal(model(x), wanted)
print(json.dumps([right, traces(), list(model.forward.cache_info()[:4])]))
