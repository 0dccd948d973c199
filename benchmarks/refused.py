"""Models that can't be stored: what a restart costs once the cache knows that.

The first process compiles in vain and stores the refusal. A restarted one finds the refusal, checks
its conditions and runs the model eagerly: the table compares that with a process that has no cache.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from measuring import Numbers, Stopwatch, fresh, markdown, rounds, run_script

MODELS = ("Longformer", "Reformer")
COLUMNS = (
    "model",
    "eager, first call, ms",
    "cold, first call, ms",
    "restarted, first call, ms",
    "restarted / eager's",
    "eager, later call, ms",
    "restarted, later call, ms",
)


def measure(quick: bool) -> Numbers:
    found: Numbers = {}
    with tempfile.TemporaryDirectory() as temporary:
        for model in MODELS[:1] if quick else MODELS:
            run = partial(fresh, Path(__file__), "worker", model)
            settings = {"NPUGX_CACHE_DIR": f"{temporary}/cache", "XDG_STATE_HOME": temporary}
            cold = run("cached", **settings)
            restarted = partial(run, "cached", **settings)
            eager, restored = rounds([partial(run, "eager"), restarted], 1 if quick else 5)
            found[model] = {"eager": eager, "cold": cold, "restarted": restored}
    return found


def text(found: Numbers) -> str:
    rows = []
    for model, row in found.items():
        first = {way: numbers["first_cpu"] * 1e3 for way, numbers in row.items()}
        later = {way: numbers["later_cpu"] * 1e3 for way, numbers in row.items()}
        rows.append(
            [
                model,
                *(f"{first[way]:.1f}" for way in ("eager", "cold", "restarted")),
                f"{first['restarted'] / first['eager']:.2f}",
                *(f"{later[way]:.1f}" for way in ("eager", "restarted")),
            ]
        )
    return markdown(COLUMNS, rows)


# --- in a process of its own


def worker(name: str, way: str) -> Numbers:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, inputs = _MADE[name]()
    if way == "cached":
        from npugx_cache import cache_compile

        model = cache_compile(model.eval())
    found: Numbers = {}
    with torch.no_grad():
        watch = Stopwatch()
        model.eval()(**inputs)
        found |= watch.read("first")
        for _ in range(3):
            watch = Stopwatch()
            model(**inputs)
            found |= watch.read("later")
    if way == "cached":
        info = model.forward.cache_info()
        if info[:3] != (0, 0, 4):
            raise SystemExit(f"{name} is not refused: {info}")
    return found


def _longformer() -> tuple[Any, Numbers]:
    import torch
    from transformers import LongformerConfig, LongformerModel

    config = LongformerConfig(
        vocab_size=128,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=128,
        attention_window=[8, 8, 8, 8],
        max_position_embeddings=128,
    )
    return LongformerModel(config), {"input_ids": torch.ones(1, 32, dtype=torch.int64)}


def _reformer() -> tuple[Any, Numbers]:
    import torch
    from transformers import ReformerConfig, ReformerModel

    config = ReformerConfig(
        vocab_size=128,
        hidden_size=64,
        num_attention_heads=2,
        attention_head_size=32,
        feed_forward_size=64,
        attn_layers=["local", "lsh"],
        local_attn_chunk_length=8,
        lsh_attn_chunk_length=8,
        num_buckets=4,
        axial_pos_embds=False,
        max_position_embeddings=128,
    )
    return ReformerModel(config), {"input_ids": torch.ones(1, 32, dtype=torch.int64)}


_MADE = {"Longformer": _longformer, "Reformer": _reformer}

if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        print(json.dumps(worker(*sys.argv[2:])))
    else:
        run_script(__doc__, measure, text)
