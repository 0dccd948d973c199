"""Run the loops of `qwen3_generation` in this process, eagerly or through the cache."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from qwen3_generation import build, decode, growing_ids, next_token, prefill
from torch._dynamo.utils import counters  # loaded by transformers anyway

from npugx_cache import cache_compile

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


def measure_loops(args: argparse.Namespace) -> list[dict[str, object]]:
    """One row per loop. The clock starts with the loop: model and prefill are there already."""
    torch.set_num_threads(1)
    eager = args.mode == "eager"
    with torch.no_grad():
        (model, ids), (twin, _) = (build(args.layers, args.dtype) for _ in range(2))
        if not eager:
            model = cache_compile(model, dynamic=True, cache_dir=args.cache_dir)
        loops = [growing_ids(each, ids, args.tokens) for each in (model, twin)]
        growing = _measure("growing ids", loops, args.tokens, None if eager else model.forward)

        step = None if eager else cache_compile(next_token, cache_dir=args.cache_dir)
        positions = range(ids.shape[1], ids.shape[1] + args.tokens)
        starts = [prefill(twin, ids, args.tokens) for _ in range(2)]
        calls = step or next_token, next_token
        loops = [decode(calls[i], twin, *starts[i], positions) for i in range(2)]
        static = _measure("static KV", loops, args.tokens, step)
    return [{"dtype": args.dtype, **row} for row in (growing, static)]


def _measure(name: str, loops: list[Iterator[int]], tokens: int, cached: Any) -> dict[str, Any]:
    """Time a loop and the same loop run eagerly, a token of each in turn."""
    graphs = counters["stats"]["unique_graphs"]
    timed = [[_timed(loop) for loop in loops] for _ in range(tokens)]
    ours, eagers = ([seconds for _, seconds in column] for column in zip(*timed, strict=True))
    return {
        "loop": name,
        "tokens": [token for (token, _), _ in timed],
        "first_s": f"{ours[0]:.3f}",
        "steady_ms": f"{1000 * median(ours[3:]):.1f}",
        "eager_ms": f"{1000 * median(eagers[3:]):.1f}",
        "entries": cached.cache_info().entries if cached else 0,
        "traced": counters["stats"]["unique_graphs"] - graphs,
    }


def _timed(loop: Iterator[int]) -> tuple[int, float]:
    start = time.perf_counter()
    return next(loop), time.perf_counter() - start
