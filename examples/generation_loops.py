"""Run the loops of `qwen3_generation` in this process, eagerly or through the cache."""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from qwen3_generation import build, decode, growing_ids, next_token, prefill
from torch._dynamo.utils import counters  # loaded by transformers anyway

from npugx_cache import cache_compile

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from npugx_cache import CachedFunction


def measure_loops(args: argparse.Namespace) -> list[dict[str, object]]:
    """One row per loop. The clock starts with the loop: model and prefill are there already."""
    torch.set_num_threads(1)
    eager = args.mode == "eager"
    with torch.no_grad():
        model, ids = build(args.layers, args.dtype)
        if not eager:
            model = cache_compile(model, dynamic=True, cache_dir=args.cache_dir)
        loop = growing_ids(model, ids, args.tokens)
        growing = _measure("growing ids", loop, None if eager else model.forward)

        model, ids = build(args.layers, args.dtype)
        step = None if eager else cache_compile(next_token, cache_dir=args.cache_dir)
        token, kv = prefill(model, ids, args.tokens)
        positions = range(ids.shape[1], ids.shape[1] + args.tokens)
        loop = decode(step or next_token, model, token, kv, positions)
        static = _measure("static KV", loop, step)
    return [{"dtype": args.dtype, **row} for row in (growing, static)]


def _measure(
    name: str, loop: Iterator[int], cached: CachedFunction[..., Any] | None
) -> dict[str, Any]:
    graphs, start = counters["stats"]["unique_graphs"], time.perf_counter()
    stamped = [(token, time.perf_counter() - start) for token in loop]
    ends = [end for _, end in stamped]
    steps = [end - begin for begin, end in pairwise(ends)]
    return {
        "loop": name,
        "tokens": [token for token, _ in stamped],
        "first_s": f"{ends[0]:.3f}",
        "steady_ms": f"{1000 * median(steps[2:]):.1f}",  # not the second and third call
        "entries": cached.cache_info().entries if cached else 0,
        "traced": counters["stats"]["unique_graphs"] - graphs,
    }
