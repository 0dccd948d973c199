"""Run each stream program eagerly and cached, and print results and what was issued, as JSON.

python run_streams.py EAGER|CAPTURED|BESIDE [NAME ...]

BESIDE: captured, in a process that has used the vendor's compiler.
"""

import json
import logging
import sys

import npu_sim
import torch

sys.path.insert(0, __file__.rpartition("/")[0])

from stream_programs import PROGRAMS

from npugx_cache import cache_compile

COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "sympy")


def called(function, arguments, streams):
    """What three calls return, leave in their argument, and issue."""
    results, orders = [], []
    for seed in range(3):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)).npu()
        with torch.no_grad(), npu_sim.issued(**streams) as issued:
            returned = function(x, *arguments)
        results.append([part.cpu().tolist() for part in (*_parts(returned), x)])
        # An operator may write over a value that dies with it.
        orders.append([[each.what.rstrip("_"), each.on, each.stream] for each in issued])
    return results, orders


def _parts(returned):
    return returned if isinstance(returned, tuple) else (returned,)


def main(way, *wanted):
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    if way == "BESIDE":
        theirs = torch.compile(torch.sin, backend="npugraph_ex", options={"force_eager": True})
        with torch.no_grad():
            theirs(torch.ones(3).npu())
    rows, loaded = {}, set()
    for name, (function, arguments, streams) in PROGRAMS.items():
        if wanted and name not in wanted:
            continue
        cached = cache_compile(function, options={"force_eager": way == "EAGER"})
        before = set(sys.modules)
        # Eager comes second: a restored function must not need what it loads.
        ours, issued = called(cached, arguments, streams)
        loaded |= {each for each in COMPILERS if each in sys.modules and each not in before}
        theirs, order = called(function, arguments, streams)
        info = cached.cache_info()
        rows[name] = {
            "equal": theirs == ours,
            "eager": order,
            "issued": issued,
            "replays": sum(graph.replays for graph in info.graphs),
            "hits": info.hits,
            "misses": info.misses,
            "bypasses": info.bypasses,
        }
    print(json.dumps({"rows": rows, "loaded": sorted(loaded)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
