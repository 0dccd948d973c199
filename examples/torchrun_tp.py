"""Serve one model on several ranks: tensor-parallel, or each rank its own requests. Run it twice.

    torchrun --standalone --nproc-per-node 2 torchrun_tp.py
    torchrun --standalone --nproc-per-node 2 torchrun_tp.py data

Ranks whose graphs are equal share an entry: one rank compiles, the others wait for it and load.
Here the vocabulary is split up, so the tensor-parallel graph depends on the rank: one each.
"""

import atexit
import datetime as dt
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, parallel
from transformers import LlamaConfig, LlamaForCausalLM

from npugx_cache import CachedFunction, cache_compile

SIZES: Any = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128}
PLAN = {
    "model.embed_tokens": parallel.RowwiseParallel(input_layouts=Replicate()),
    **{f"model.layers.*.self_attn.{name}_proj": parallel.ColwiseParallel() for name in "qkv"},
    "model.layers.*.self_attn.o_proj": parallel.RowwiseParallel(),
    **{f"model.layers.*.mlp.{name}_proj": parallel.ColwiseParallel() for name in ("gate", "up")},
    "model.layers.*.mlp.down_proj": parallel.RowwiseParallel(),
    "lm_head": parallel.ColwiseParallel(output_layouts=Replicate()),
}

# A rank waits for another's compile at most half of this timeout; then it compiles by itself.
dist.init_process_group("gloo", timeout=dt.timedelta(minutes=10))
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)  # the same weights on every rank
config = LlamaConfig(**SIZES, num_hidden_layers=2, num_attention_heads=4)
model: Any = LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]
each_its_own = sys.argv[1:] == ["data"]
ids = torch.arange(6)[None] + rank * each_its_own
if not each_its_own:
    parallel.parallelize_module(model, init_device_mesh("cpu", (world,)), PLAN)
with torch.no_grad():
    expected = model(ids, use_cache=False).logits

cache_compile(model)
assert isinstance(model.forward, CachedFunction)  # for type checkers
start, cpu = time.perf_counter(), time.process_time()
logits = model(ids, use_cache=False).logits
took, cpu = time.perf_counter() - start, time.process_time() - cpu
assert torch.equal(logits, expected)
print(f"result: rank {rank}: {logits.sum():.4f}\n{model.forward.cache_info()}", flush=True)
print(f"rank {rank}: first call: {took:.3f} s, CPU {cpu:.3f} s", flush=True)
dist.destroy_process_group()
# Not the end of the interpreter: torch may abort there, cached or not (docs/deployment.md).
atexit._run_exitfuncs()  # noqa: SLF001 - it has no public name
os._exit(0)
