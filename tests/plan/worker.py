"""A worker that captures graphs, or captures ahead what an earlier one did; prints JSON.

python worker.py DEVICE HOW FOLDER: HOW is "call", "warm" (before the calls) or "argument"
"""

import json
import sys

import torch

device, how, folder = sys.argv[1:]
if device == "npu":
    import npu_sim

    npu_sim.install()
if device == "cuda":
    torch.backends.cuda.matmul.allow_tf32 = False
    from npugx_cache.backend.capture.cuda import CudaDevice

    # What a first use makes is made here, and plans are the same as on other devices.
    torch.ones(8, 8, device=device).matmul(torch.ones(8, 8, device=device)).sum().item()
    CudaDevice.warm_up_calls = 0

from npugx_cache import cache_compile  # noqa: E402

BACKEND = "npugraphs"
ARGUMENTS = {"cache_dir": folder, "backend": BACKEND, "dynamic": True}
SIZES = (3, 5, 5, 4, 5, 4)


class Net(torch.nn.Module):
    """Uses parameters at their address, and writes to a buffer of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)
        self.tied = self.linear
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x, factor=2):
        self.seen.add_(1)
        return self.tied(x).relu() * factor + self.seen


class Decoder(torch.nn.Module):
    """Writes to a cache of its caller's, which no plan knows."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(4))

    @cache_compile(**ARGUMENTS, warm="plan" if how == "argument" else None)
    def step(self, x, kv):
        kv.add_(x @ self.weight)
        return kv * 2

    @cache_compile(**ARGUMENTS, warm="plan" if how == "argument" else None)
    def pure(self, x):
        return x @ self.weight


def graphs(cached):
    return [[g.shape, g.replays] for g in cached.cache_info().graphs]


def main():
    net, plain, decoder = Net().eval().to(device), Net().eval().to(device), Decoder().to(device)
    cached = cache_compile(net.forward, **ARGUMENTS, warm="plan" if how == "argument" else None)
    warmed = []
    if how == "warm":
        warmed = [list(f.warm()) for f in (cached, decoder.step, decoder.pure)]
    report = {"warmed": warmed, "before": graphs(cached), "equal": True}
    kv, theirs = torch.zeros(3, 4, device=device), torch.zeros(3, 4, device=device)
    with torch.no_grad():
        for n, size in enumerate(SIZES):
            x = torch.full((size, 4), float(n)).to(device)
            report["equal"] &= bool(torch.equal(cached(x), plain(x)))
            y = torch.full((3, 4), float(n)).to(device)
            theirs += y
            report["equal"] &= bool(torch.equal(decoder.step(y, kv), theirs * 2))
            report["equal"] &= bool(torch.equal(decoder.pure(x), x))
            if n == 0:
                report["pure"] = graphs(decoder.pure)
    report |= {
        "after": graphs(cached),
        "decoder": graphs(decoder.step),
        "misses": cached.cache_info().misses + decoder.step.cache_info().misses,
        "compiler": "torch._dynamo" in sys.modules,
    }
    print(json.dumps(report))


main()
