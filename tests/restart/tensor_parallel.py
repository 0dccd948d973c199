"""One rank of a group: models and tensors that are sharded, plain and cached; prints JSON.

python tensor_parallel.py RANK WORLD MEETING_PLACE MODE
"""

import hashlib
import json
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from npugx_cache import cache_compile
from tests.ranks import leave

rank, world, place, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
store = dist.FileStore(place, world)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
if mode == "other groups":  # so that the groups of the meshes below get other names
    dist.new_group([0])
mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
grid = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("q", "k", "v", "o"):
            self.add_module(name, nn.Linear(8, 8, bias=name == "o"))

    def forward(self, x):
        q, k, v = (each(x).unflatten(-1, (-1, 2)).mT for each in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q.mT, k.mT, v.mT)
        return self.o(mixed.flatten(-2))


class Uneven(nn.Module):
    """Ten rows of words on four ranks: three, three, three and one."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(10, 8), nn.Linear(8, 10)

    def forward(self, ids):
        return self.head(self.words(ids))


class Part(nn.Module):
    """This rank's rows and columns as plain tensors, and the collective in the code."""

    def __init__(self, whole):
        super().__init__()
        self.up = nn.Parameter(whole.up.weight.chunk(world)[rank].detach().clone())
        self.down = nn.Parameter(whole.down.weight.chunk(world, 1)[rank].detach().clone())

    def forward(self, x):
        return fc.all_reduce(torch.relu(x @ self.up.T) @ self.down.T, "sum", dist.group.WORLD)


def whole(x):
    return x.full_tensor() + 1


def size_of_part(x):
    part = x.redistribute(placements=[Shard(0)]).to_local()
    return torch.ones(3) * part.shape[0]


def part_of_mesh(x, mesh):
    return x + mesh.get_local_rank()


def place_in_group(x, mesh):
    return x + mesh.get_group("tp").rank()


def size_of_mesh(x, mesh):
    return x * mesh.size()


def name_of_mesh(x, mesh):
    return x * len(mesh.mesh_dim_names[0])


def length(x):
    return x.to_local() * x.shape[0]


def add_one(x):
    return x + 1


def softmax(x):
    return x.softmax(1).full_tensor()


def checked(x, mesh):
    return DTensor.from_local(x, mesh, [Shard(0)], run_check=True).full_tensor()


def local(value):
    return value.to_local() if isinstance(value, DTensor) else value


def sharded(*shape, placement, over=mesh):
    count = torch.Size(shape).numel()
    return distribute_tensor(torch.arange(float(count)).view(shape), over, [placement])


def parallel(model, plan, over=mesh):
    return parallelize_module(model.eval(), over, plan)


def split(**options):
    return {"up": ColwiseParallel(), "down": RowwiseParallel(), **options}


def models():
    x = torch.randn(2, 4, 8)
    columns = dict.fromkeys("qkv", ColwiseParallel())
    scattered = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    uneven = {
        "words": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    return {
        "plain_parts": (Part(MLP()).eval(), x),
        "mlp": (parallel(MLP(), split()), x),
        "attention": (parallel(Attention(), {**columns, "o": RowwiseParallel()}), x),
        "sequence": (parallel(MLP(), scattered), x),
        "uneven": (parallel(Uneven(), uneven), torch.tensor([[1, 9, 3, 5]])),
        "slice": (parallel(MLP(), split(), grid["tp"]), x),
    }


def tensors():
    x = torch.randn(4)
    return {
        "even": (whole, sharded(8, 6, placement=Shard(0))),
        "size_of_part": (size_of_part, sharded(5, 6, placement=Replicate())),
        "part_of_mesh": (part_of_mesh, x, mesh),
        "place_in_group": (place_in_group, x, grid),
        "size_of_mesh": (size_of_mesh, x, mesh),
        "checked": (checked, x, mesh),
        "leaves": (add_one, sharded(8, 6, placement=Shard(0))),
    }


def other_meshes():
    """Tensors of which each rank holds the same part, and meshes of the same ranks, in pairs."""
    part = torch.arange(24.0).view(4, 6) + rank
    backwards = DeviceMesh("cpu", [*reversed(range(world))], mesh_dim_names=("tp",))
    named = init_device_mesh("cpu", (world,), mesh_dim_names=("other",))
    return {
        "rows": (whole, DTensor.from_local(part, mesh, [Shard(0)])),
        "columns": (whole, DTensor.from_local(part, mesh, [Shard(1)])),
        "copies": (whole, sharded(4, 6, placement=Replicate())),
        "backwards": (whole, DTensor.from_local(part, backwards, [Shard(0)])),
        "long": (length, DTensor.from_local(part, mesh, [Shard(0)])),
        "longer": (
            length,
            DTensor.from_local(part, mesh, [Shard(0)], shape=(4 * world + 1, 6), stride=(6, 1)),
        ),
        "named": (name_of_mesh, torch.ones(3), mesh),
        "named_otherwise": (name_of_mesh, torch.ones(3), named),
    }


def own_rule():
    """An operator that user code says how to split up."""

    @register_sharding(torch.ops.aten._softmax.default)
    def rule(x, dim, half_to_float):
        return [([Replicate()], [Replicate(), None, None])]

    return {"own_rule": (softmax, sharded(8, 6, placement=Shard(0)))}


def run(function, *args):
    want, cached = function(*args), cache_compile(function)
    got = local(cached(*args))
    info = cached.cache_info() if hasattr(cached, "cache_info") else cached.forward.cache_info()
    return {
        "equal": torch.equal(got, local(want)),
        "result": hashlib.sha256(got.contiguous().numpy().tobytes()).hexdigest()[:16],
        **{name: getattr(info, name) for name in ("hits", "misses", "bypasses")},
    }


def main():
    torch.manual_seed(0)
    programs = {**models(), **tensors(), **other_meshes()}
    with torch.no_grad():
        found = {name: run(*program) for name, program in programs.items()}
        found |= {name: run(*program) for name, program in own_rule().items()}
    # Nobody leaves while another one still listens; the store needs no connections for that.
    store.set(f"done {rank}", "")
    store.wait([f"done {each}" for each in range(world)])
    dist.destroy_process_group()
    print(json.dumps(found))
    leave()


main()
