"""Run as a script: small programs on one of two devices, through the cache, as JSON.

places.py INDEX [TIMES]: that device is the current one, and inputs are on it unless a row says
otherwise. Each row's programs are called TIMES times and compared with eager, devices included.
"""

import json
import sys
from pathlib import Path

import npu_sim
import placed_operators
import torch

from npugx_cache import cache_compile

npu_sim.install()
HERE = int(sys.argv[1]) if __name__ == "__main__" else 0
FIXED = torch.device("npu:0")
OWN = torch.device("npu", HERE)
OWNS = [OWN]
SCALE = {"npu:0": 2.0, "npu:1": 3.0}
STREAM = torch.npu.Stream(device=0)


class Block(torch.nn.Module):
    def __init__(self, device, kept=None):
        super().__init__()
        torch.manual_seed(0)
        self.project = torch.nn.Linear(4, 4)
        self.register_buffer("offset", torch.ones(4))
        self.kept = kept
        self.to(device)

    def forward(self, x):
        return self.project(x) + self.offset


class Positions(Block):
    def forward(self, x):
        steps = torch.arange(4, device=x.device) + torch.zeros(4, device="npu")
        mask = torch.full((4,), 0.5, device=self.offset.device).to(x.device)
        return super().forward(x) * mask + steps + x.new_ones(4) + torch.ones_like(self.offset)


class Kept(Block):
    def forward(self, x):
        return super().forward(x.to(self.kept)), torch.arange(4, device=self.kept)


class Layers(Block):
    """A table per kind of layer, made in the order of a set, as by Gemma 3."""

    kinds = ("sliding_attention", "full_attention")

    def forward(self, x):
        tables = {kind: self.offset * len(kind) for kind in set(self.kinds)}
        for kind in self.kinds:
            x = super().forward(x) * tables[kind]
        return x


def alike(x, y):
    return x + 1 if x.device == y.device and x.device.type == "npu" else x - 1


def in_list(x):
    return x + 1, torch.ones(2, device=OWNS[0]) if x.device in OWNS else x


def constant(x):
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)


def moved_here(x):
    return x.npu() + 1, x.to("npu") * 2


def with_device(x, device):
    return x + torch.arange(4, device=device)


def checked(x):
    known = {x.device: 3.0}
    assert isinstance(x.device, torch.device)
    return x * known[x.device] if x.device in known and x.device is not None else x


def own_global(x):
    return x + 1, torch.ones(2, device=OWN)


def made(x):
    return x + torch.arange(4)  # under a default device


def grows(x):
    return x.sum(0) + x.shape[0]


def literal(x):
    return x + 1, torch.arange(4, device="npu:0")


def literal_device(x):
    return x + 1, torch.ones(4, device=torch.device("npu:0"))


def literal_parts(x):
    return x + 1, torch.ones(4, device=torch.device("npu", 0))


def literal_number(x):
    return x + 1, torch.ones(4, device=0)


def to_number(x):
    return (x.to(0) + 1,)


def to_literal(x):
    return (x.to("npu:0") + 1,)


def npu_number(x):
    return (x.npu(0) + 1,)


def by_parts(x):
    return x + 1, torch.ones(4, device=torch.device(x.device.type, x.device.index))


def by_repr(x):
    return x + len(repr(x.device)) * 2 + ord(repr(x.device)[-2])


def as_number(x):
    return x + 1, torch.as_tensor(2.0, device=0)


def by_index(x):
    return x + x.device.index


def by_get_device(x):
    return x + x.get_device()


def by_text(x):
    return x * SCALE[str(x.device)]


def by_format(x):
    return x * SCALE[f"{x.device}"]


def by_literal(x):
    return x + 1 if x.device == torch.device("npu:0") else x - 1


def fixed_global(x):
    return x + 1, torch.ones(2, device=FIXED)


def returned(x):
    return x + 1, x.device


def default_of(x, device=torch.device("npu:0")):  # noqa: B008 - what is tested
    return x + 1, torch.ones(2, device=device)


def default_argument(x):
    return default_of(x)


def both(x, y):
    return x + 1, y * 2


def to_given(x, n):
    return x.to(n), torch.ones(4, device=n), x + 1


def on_computed(x, n):
    return torch.ones(4, device=n - 1), x.new_ones(2, device=n * 2 - 2), x + 1


def index_of_made(x):
    return x + torch.zeros(2, device="npu").device.index


def with_cpu_default(x, device=torch.device("cpu")):  # noqa: B008 - what is tested
    return torch.arange(4, device=device).to(x.device) + x


def with_cpu(x):
    return with_cpu_default(x)


def block_of_device(x):
    with torch.accelerator.device_index(0):
        return x + 1, torch.ones(4, device="npu")


def block_of_stream(x):
    with STREAM:
        y = torch.ones(4, device="npu")
    return x + 1, y


def here(*size):
    torch.manual_seed(1)
    return torch.randn(size or (2, 4)).to(OWN)


def elsewhere():
    return here().to(f"npu:{1 - HERE}")


HITS = {
    "a module": lambda: (Block(OWN).forward, (here(),)),
    "devices of inputs and of none": lambda: (Positions(OWN).forward, (here(),)),
    "a device kept by a module": lambda: (Kept(OWN, OWN).forward, (here(),)),
    "a device in a global": lambda: (own_global, (here(),)),
    "a device as an argument": lambda: (with_device, (here(), OWN)),
    "a device in a list": lambda: (in_list, (here(),)),
    "a device that is returned": lambda: (returned, (here(),)),
    "devices compared": lambda: (alike, (here(), here())),
    "a device as a key": lambda: (checked, (here(),)),
    "a constant of the graph": lambda: (constant, (here(),)),
    "from the CPU": lambda: (moved_here, (here().cpu(),)),
    "the CPU beside": lambda: (with_cpu, (here(),)),
    "an order that does not matter": lambda: (Layers(OWN).forward, (here(),)),
    "a symbolic size": lambda: (grows, (here(5, 4),), {"dynamic": True}),
}
RIGHT = {
    "a literal": lambda: (literal, (here(),)),
    "a literal device": lambda: (literal_device, (here(),)),
    "a literal in parts": lambda: (literal_parts, (here(),)),
    "a number": lambda: (literal_number, (here(),)),
    "to(number)": lambda: (to_number, (here(),)),
    "to(literal)": lambda: (to_literal, (here(),)),
    "npu(number)": lambda: (npu_number, (here(),)),
    "as_tensor(number)": lambda: (as_number, (here(),)),
    "the index": lambda: (by_index, (here(),)),
    "get_device()": lambda: (by_get_device, (here(),)),
    "str()": lambda: (by_text, (here(),)),
    "a format": lambda: (by_format, (here(),)),
    "repr()": lambda: (by_repr, (here(),)),
    "its parts": lambda: (by_parts, (here(),)),
    "compared with a literal": lambda: (by_literal, (here(),)),
    "a fixed global": lambda: (fixed_global, (here(),)),
    "a fixed attribute": lambda: (Kept(FIXED, FIXED).forward, (here(),)),
    "a fixed argument": lambda: (with_device, (here().to(FIXED), FIXED)),
    "a fixed default": lambda: (default_argument, (here(),)),
    "two devices": lambda: (both, (here(), elsewhere())),
    "inputs elsewhere": lambda: (grows, (elsewhere(),)),
    "a symbolic number": lambda: (to_given, (here(), 0), {"dynamic": True}),
    "a computed number": lambda: (on_computed, (here(), 1), {"dynamic": True}),
    "no operator on it": lambda: (index_of_made, (here().cpu(),)),
}
ELSEWHERE = {
    "another device in a block": lambda: (block_of_device, (here(),)),
    "a stream of another device": lambda: (block_of_stream, (here(),)),
}
for each in placed_operators.PORTABLE:
    HITS[each._name] = lambda made=each: (placed_operators.calling(made), (here(),))
for each in placed_operators.TIED:
    RIGHT[each._name] = lambda made=each: (placed_operators.calling(made), (here(),))


def same(got, want):
    if isinstance(got, tuple):
        return len(got) == len(want) and all(map(same, got, want))
    if not isinstance(got, torch.Tensor):
        return got == want
    return got.device == want.device and torch.equal(got.cpu(), want.cpu())


def outcome(make, folder, times):
    function, args, *options = make()
    with torch.no_grad():
        want = function(*args)
    cached = cache_compile(function, cache_dir=folder, **(options[0] if options else {}))
    right = all(same(cached(*args), want) for _ in range(times))
    info = cached.cache_info()
    compiler = "torch._dynamo.convert_frame" in sys.modules
    counts = {"hits": info.hits, "misses": info.misses, "bypasses": info.bypasses}
    return counts | {"right": right, "compiler": compiler, "captured": len(info.graphs)}


if __name__ == "__main__":
    torch.npu.set_device(HERE)
    times = int(sys.argv[2])
    found = {}
    for name, make in {**HITS, **RIGHT, **ELSEWHERE}.items():
        found[name] = outcome(make, Path.cwd() / name.replace(" ", "_"), times)
    torch.set_default_device(OWN)
    found["a default device"] = outcome(lambda: (made, (here(),)), Path.cwd() / "default", times)
    print(json.dumps(found))
