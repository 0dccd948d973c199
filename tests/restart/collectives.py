"""One rank of a group: functional collectives, plain and cached; prints JSON.

python collectives.py RANK WORLD MEETING_PLACE
"""

import json
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc

from npugx_cache import cache_compile

GROUP = "0"  # the name of the group of all ranks


def everything(x):
    gathered = fc.all_gather_tensor(x + 1, 0, GROUP)
    return (
        fc.all_reduce(x * 2, "sum", GROUP),
        gathered,
        fc.reduce_scatter_tensor(gathered * x.sum(), "sum", 0, GROUP),
        fc.broadcast(x + 5, 0, GROUP),
    )


def in_place(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def by_rank(x):
    sizes = [1] * len(x)
    return fc.all_to_all_single(x, sizes, sizes, GROUP)


def run(function, x):
    want, cached = function(x), cache_compile(function)
    got = cached(x)
    pairs = zip(want, got, strict=True) if isinstance(want, tuple) else [(want, got)]
    return {
        "equal": all(torch.equal(a, b) for a, b in pairs),
        **{name: getattr(cached.cache_info(), name) for name in ("hits", "misses", "bypasses")},
    }


def main(rank, world, place):
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=world)
    x = torch.arange(float(world)) + rank
    print(json.dumps({f.__name__: run(f, x) for f in (everything, in_place, by_rank)}))
    sys.stdout.flush()
    dist.barrier()  # nobody leaves while another one still listens
    dist.destroy_process_group()


main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
