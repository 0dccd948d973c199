"""A rank of a group whose compile is watched: `ranks_compiling.py FOLDER MODE`, under torchrun.

Each graph holds an operator that notes in FOLDER that its trace has begun. By MODE, it then:
"apart": waits for the traces of all other ranks, but in the first trace of all;
"killed": kills the process in the first trace of all, without notice;
"stopped": stops the process.
In "halves" it does neither, and a constant of the model is the same on two ranks each.
Each rank writes what it counted to FOLDER, because torchrun passes on no output in order.
"""

import datetime as dt
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc

from npugx_cache import cache_compile
from tests import mid_trace
from tests.ranks import leave

FOLDER, MODE = Path(sys.argv[1]), sys.argv[2]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
RESTARTED = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
TIMEOUT = float(os.environ.get("GROUP_TIMEOUT", "600"))


class Notes:
    """What a trace does in this rank. Its attributes are no globals, which would separate ranks."""

    def __init__(self, rank, world, folder, mode, restarted):
        self.rank, self.world, self.folder = rank, world, folder
        self.mode, self.restarted = mode, restarted

    def is_first(self):
        """Whether the first trace of all is that of this rank."""
        try:
            with (self.folder / "first").open("x") as file:
                file.write(str(self.rank))
        except FileExistsError:
            return (self.folder / "first").read_text() == str(self.rank)
        return True

    def begin(self):
        (self.folder / f"tracing{self.rank}").touch()
        if self.mode == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.mode == "killed" and not self.restarted and self.is_first():
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.mode == "apart" and not self.is_first():
            given_up = time.monotonic() + 60
            while len(list(self.folder.glob("tracing*"))) < self.world:
                if time.monotonic() > given_up:
                    break
                time.sleep(0.02)
            (self.folder / f"together{self.rank}").touch()


NOTES = Notes(RANK, WORLD, FOLDER, MODE, RESTARTED)


@torch.library.custom_op("compiling::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x):
    return torch.empty_like(x)


mid_trace.at_each_input(lambda _: NOTES.begin())


def shared(x):
    return fc.all_reduce(double(x), "sum", dist.group.WORLD)


def of_rank(x):
    return double(x) + dist.get_rank()


class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = RANK // 2

    def forward(self, x):
        return double(x) + self.part


dist.init_process_group("gloo", timeout=dt.timedelta(seconds=TIMEOUT))
function = {"apart": of_rank, "halves": Part().forward}.get(MODE, shared)
x = torch.arange(3.0) + RANK
cached = cache_compile(function)
got = cached(x)
found = {
    "right": torch.equal(got, function(x)),
    "counts": list(cached.cache_info()[:4]),
    "together": (FOLDER / f"together{RANK}").exists(),
}
(FOLDER / f"found{RANK}.json").write_text(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
leave()
