"""A worker whose functions use streams and events; captures, or captures ahead; prints JSON.

python streams_worker.py DEVICE HOW FOLDER: HOW is "call" or "warm" (before the calls)
"""

import json
import sys

import torch

device, how, folder = sys.argv[1:]
if device == "npu":
    import npu_sim

    npu_sim.install()
if device == "cuda":
    from npugx_cache.backend.capture.cuda import CudaDevice

    # What a first use makes is made here, and plans are the same as on other devices.
    torch.ones(8, 8, device=device).matmul(torch.ones(8, 8, device=device)).sum().item()
    CudaDevice.warm_up_calls = 0

from npugx_cache import cache_compile  # noqa: E402

SIDE, OTHER = torch.Stream(device=device), torch.Stream(device=device)
EVENTS = [torch.Event(device=device) for _ in range(2)]
LIMITED = torch.Stream(device=device)


def current():
    return torch.accelerator.current_stream()


def between_events(x, side, begin, end):
    begin.record()
    side.wait_event(begin)
    with side:
        y = x.sin()
        end.record()
    z = x.cos()
    end.wait()
    return y + z


def made_inside(x):
    stream = torch.Stream(device=x.device)
    stream.wait_stream(current())
    with stream:
        y = x * 2
    current().wait_stream(stream)
    return y + 1


class Overlapped(torch.nn.Module):
    """Uses parameters at their address, on a stream of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.stream = torch.Stream(device=device)

    def forward(self, x):
        self.stream.wait_stream(current())
        with self.stream:
            right = self.right(x)
        left = self.left(x)
        current().wait_stream(self.stream)
        return left + right


def calls():
    """Names, functions, and what they are called with: other streams, the same ones, limited."""
    module = Overlapped().eval().to(device)
    if device == "npu":
        torch.npu.set_stream_limit(torch.npu.Stream(**identity(LIMITED)), 2, 4)
    ways = [(SIDE, *EVENTS), (OTHER, *EVENTS), (current(), *EVENTS), (SIDE, EVENTS[0], EVENTS[0])]
    return {
        "between_events": (between_events, [*ways, (LIMITED, *EVENTS)]),
        "made_inside": (made_inside, [()]),
        "module": (module.forward, [()]),
    }


def identity(stream):
    return {name: getattr(stream, name) for name in ("stream_id", "device_index", "device_type")}


def main():
    rows = {}
    for name, (function, ways) in calls().items():
        cached = cache_compile(function, cache_dir=folder)
        warmed = list(cached.warm()) if how == "warm" else []
        ahead = len(cached.cache_info().graphs)
        equal = True
        with torch.no_grad():
            for n, others in enumerate([*ways, *ways]):
                x = torch.full((3, 4), float(n)).to(device)
                equal &= bool(torch.equal(cached(x, *others).cpu(), function(x, *others).cpu()))
        info = cached.cache_info()
        rows[name] = {
            "warmed": warmed,
            "ahead": ahead,
            "equal": equal,
            "graphs": len(info.graphs),
            "replays": sum(graph.replays for graph in info.graphs),
            "misses": info.misses,
        }
    print(json.dumps({"rows": rows, "compiler": "torch._dynamo" in sys.modules}))


main()
