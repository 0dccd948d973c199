"""One rank of a tiny Llama that transformers splits up (`tp_plan="auto"`); prints JSON.

python programs_tp_plan.py FOLDER                            saves the model
python programs_tp_plan.py FOLDER RANK WORLD MEETING_PLACE   runs it, plain and cached
"""

import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from npugx_cache import cache_compile
from tests.ranks import leave

SIZES = {
    "vocab_size": 62,  # no multiple of four
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}


def save(folder):
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder)
    print(json.dumps({}))


def run(folder, rank, world, place):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    store = dist.FileStore(place, world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto", dtype=torch.float32)
    ids = torch.arange(6)[None]
    with torch.no_grad():
        want = model.eval()(ids, use_cache=False).logits
        cache_compile(model)
        got = model(ids, use_cache=False).logits
    info = model.forward.cache_info()
    found = {
        "is_split": isinstance(model.model.layers[0].mlp.up_proj.weight, DTensor),
        "equal": torch.equal(got, want),
        "result": hashlib.sha256(got.numpy().tobytes()).hexdigest()[:16],
        "counts": [info.hits, info.misses, info.bypasses],
    }
    # Nobody leaves while another one still listens; the store needs no connections for that.
    store.set(f"done {rank}", "")
    store.wait([f"done {each}" for each in range(world)])
    dist.destroy_process_group()
    print(json.dumps(found))
    leave()


folder, *of_rank = sys.argv[1:]
if of_rank:
    run(folder, int(of_rank[0]), int(of_rank[1]), of_rank[2])
else:
    save(folder)
