"""Serving threads beside threads that compile: `python serve_beside_compiles.py SECONDS`.

Prints how often each side ran, and what went wrong. `step` adds another number where Dynamo has
read it than where Python runs it, so a call outside of the graph shows in its result.
"""

import json
import sys
import threading
import time

import torch

from npugx_cache import cache_compile

SERVERS = 4


class Decoder(torch.nn.Module):
    """Parameters require grad, and one of them is written to: eager without no_grad raises."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.kv = torch.nn.Parameter(torch.zeros(2, 4))

    def forward(self, x):
        self.kv.copy_(self.linear(x) * 0 + x)
        return self.linear(self.kv) * 0 + x + (1 if torch.compiler.is_dynamo_compiling() else 2)


def compile_or_export(number):
    """In one thread: torch.export beside torch.compile breaks both, without this package too."""
    if number % 2:
        torch.compile(lambda x: x * number + 1, backend="aot_eager", dynamic=False)(torch.ones(3))
        torch._dynamo.reset()
    else:

        class Exported(torch.nn.Module):
            def forward(self, x):
                return x * number

        torch.export.export(Exported(), (torch.ones(3),), strict=bool(number % 4))


def compile_here(number):
    def fresh(x):
        return x - number

    assert cache_compile(fresh)(torch.ones(3)).tolist() == [1.0 - number] * 3


def main(seconds):
    deadline = time.monotonic() + seconds
    models = [cache_compile(Decoder().eval()) for _ in range(SERVERS)]
    faults, calls, rounds, done = [], [0] * SERVERS, {}, threading.Event()

    def serve(index):
        model, x = models[index], torch.full((2, 4), float(index))
        while not done.is_set():
            try:
                result = model(x)
            except Exception as error:
                faults.append(f"raised {error!r}")
            else:
                if result.requires_grad:
                    faults.append("requires grad")
                if not torch.equal(result, x + 1):
                    faults.append("outside of the graph")
            calls[index] += 1

    def keep_compiling(compile_one):
        number = 2
        while True:  # once at least, however slow the machine is
            try:
                compile_one(number)
            except Exception as error:
                faults.append(f"{compile_one.__name__}: {error!r}")
            rounds[compile_one.__name__] = rounds.get(compile_one.__name__, 0) + 1
            number += 1
            if time.monotonic() > deadline:
                return

    for index in range(SERVERS):
        models[index](torch.zeros(2, 4))
    before = [model.forward.cache_info() for model in models]
    servers = [threading.Thread(target=serve, args=(i,)) for i in range(SERVERS)]
    compilers = [
        threading.Thread(target=keep_compiling, args=(each,))
        for each in (compile_or_export, compile_here)
    ]
    for thread in (*servers, *compilers):
        thread.start()
    for thread in compilers:
        thread.join()
    done.set()
    for thread in servers:
        thread.join()
    counted = [
        model.forward.cache_info() == info for model, info in zip(models, before, strict=True)
    ]
    return {
        "calls": calls,
        "rounds": rounds,
        "faults": {fault: faults.count(fault) for fault in set(faults)},
        "counts unchanged": all(counted),
        "bypasses": sum(info.bypasses for info in before),
    }


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]))))
