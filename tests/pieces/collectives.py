"""One rank of a group of two: collectives under torch.compile(backend="npugx"); prints JSON.

python collectives.py RANK WORLD MEETING_PLACE
"""

import json
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc

from npugx_cache.pieces import compiled
from tests.ranks import leave

rank, world, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
store = dist.FileStore(place, world)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
# Every rank makes all groups, in one order: that is what gives them the same names everywhere.
alone = [dist.new_group([each]) for each in range(world)][rank]


def functional(x):
    gathered = fc.all_gather_tensor(x + 1, 0, dist.group.WORLD)
    return fc.all_reduce(x * 2, "sum", dist.group.WORLD), gathered * x.sum()


def in_place(x):
    y = x * 2
    dist.all_reduce(y)
    gathered = torch.empty(len(x) * dist.get_world_size())
    dist.all_gather_into_tensor(gathered, y)
    return y + 1, gathered


def breaks(x):
    y = fc.all_reduce(x.sin(), "sum", dist.group.WORLD)
    torch._dynamo.graph_break()
    return fc.all_reduce(y.cos(), "sum", dist.group.WORLD)


def of_its_own_group(x):
    return fc.all_reduce(x * 3, "sum", alone) + 1


def run(function):
    x = torch.arange(float(world)) + rank
    before = compiled.counters.info(0)
    want = function(x.clone())
    got = torch.compile(function, backend="npugx")(x.clone())
    both = zip(want, got, strict=True) if isinstance(want, tuple) else [(want, got)]
    after = compiled.counters.info(0)
    counts = {
        name: getattr(after, name) - getattr(before, name)
        for name in ("hits", "misses", "bypasses")
    }
    return {"equal": all(torch.equal(a, b) for a, b in both), **counts}


def main():
    with torch.no_grad():
        programs = (functional, in_place, breaks, of_its_own_group)
        found = {function.__name__: run(function) for function in programs}
    # Nobody leaves while another one still listens; the store needs no connections for that.
    store.set(f"done {rank}", "")
    store.wait([f"done {each}" for each in range(world)])
    dist.destroy_process_group()
    print(json.dumps(found))
    leave()


main()
