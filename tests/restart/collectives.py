"""One rank of a group: collectives, plain and cached; prints JSON.

python collectives.py RANK WORLD MEETING_PLACE
"""

import json
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc

from npugx_cache import cache_compile
from tests.ranks import leave

GROUP = "0"  # the name of the group of all ranks
rank, world, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
store = dist.FileStore(place, world)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
# Every rank makes all groups, in one order: that is what gives them the same names everywhere.
pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
mine = pairs[rank // 2]


def everything(x):
    gathered = fc.all_gather_tensor(x + 1, 0, GROUP)
    return (
        fc.all_reduce(x * 2, "sum", GROUP),
        gathered,
        fc.reduce_scatter_tensor(gathered * x.sum(), "sum", 0, GROUP),
        fc.broadcast(x + 5, 0, GROUP),
    )


def default_group(x):
    y = x * 2
    dist.all_reduce(y)
    dist.all_reduce(x)
    gathered = torch.empty(len(x) * dist.get_world_size())
    dist.all_gather_into_tensor(gathered, y)
    part = torch.empty(len(x))
    dist.reduce_scatter_tensor(part, gathered)
    return y + 1, x, gathered, part


def the_group_of_all(x):
    return fc.all_reduce(x * 2, "sum", dist.group.WORLD)


def a_group_of_two(x):
    y = x * 3
    dist.all_reduce(y, group=mine)
    return fc.all_gather_tensor(y, 0, mine) * dist.get_world_size(mine)


def a_group_that_is_passed(x, group):
    return fc.all_reduce(x * 2, "sum", group) + group.size()


def a_group_by_its_ranks(x):
    return fc.all_reduce(x, "sum", [*range(dist.get_world_size())])


def asks_for_its_rank(x, group):
    return fc.all_reduce(x, "sum", group) + group.rank() + 10 * dist.get_rank()


def all_to_all(x):
    made = torch.empty_like(x)
    dist.all_to_all_single(made, x)
    return made


def all_to_all_of_sizes(x, received, sent):
    return fc.all_to_all_single(x, received, sent, dist.group.WORLD)


def broadcast_in_place(x):
    y = x + 1
    dist.broadcast(y, 0)
    return y


def run(function, *args):
    x = torch.arange(float(world)) + rank
    if function is all_to_all_of_sizes:
        x = torch.arange(float(sum(args[1]))) + rank
    want, cached = function(x.clone(), *args), cache_compile(function)
    got = cached(x.clone(), *args)
    both = zip(want, got, strict=True) if isinstance(want, tuple) else [(want, got)]
    return {
        "equal": all(torch.equal(a, b) for a, b in both),
        **{name: getattr(cached.cache_info(), name) for name in ("hits", "misses", "bypasses")},
    }


def main():
    sizes = [rank + 1] * world, [*range(1, world + 1)]  # rank n gets n + 1 elements of each rank
    programs = {
        everything: (),
        default_group: (),
        the_group_of_all: (),
        a_group_of_two: (),
        a_group_that_is_passed: (dist.group.WORLD,),
        a_group_by_its_ranks: (),
        asks_for_its_rank: (mine,),
        all_to_all: (),
        all_to_all_of_sizes: sizes,
        broadcast_in_place: (),
    }
    found = {function.__name__: run(function, *args) for function, args in programs.items()}
    # Nobody leaves while another one still listens; the store needs no connections for that.
    store.set(f"done {rank}", "")
    store.wait([f"done {each}" for each in range(world)])
    dist.destroy_process_group()
    print(json.dumps(found))
    leave()


main()
