"""Runs a model in the engine of `engine.py`, and prints what came of it.

python run_engine.py HANDLES LAYERS [--sizes SIZES] [--lengths N ...] [...]
`--sizes` is a Python list: (1, 64) is a range, 16 a single size, None any size.
"""

from __future__ import annotations

import argparse
import ast
import json
import logging
import sys
import time
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from npugx_cache.integrations.vllm import NpugxCompiler
from npugx_cache.pieces import compiled

sys.path.insert(0, str(Path(__file__).parent))
from engine import Engine, Range


def asks_whether_even(module, inputs, settings):
    """A pass of a user that looks at a size."""
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dim() == 3:
            bool(value.shape[1] % 2 == 0)


ASKING = {"options": {**NpugxCompiler.options, "post_grad_custom_pre_pass": asks_whether_even}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("handles", type=Path)
    parser.add_argument("layers", type=int)
    parser.add_argument("--sizes", type=ast.literal_eval, default=[(1, 64)])
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 7, 1])
    parser.add_argument("--single-values", action="store_true")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--asks", action="store_true")
    given = parser.parse_args()

    warnings = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("npugx_cache").addHandler(handler)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=given.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
    )
    model = Qwen3ForCausalLM(config).eval()
    sizes = [Range(*each) if isinstance(each, tuple) else each for each in given.sizes]
    compiler = type("Compiler", (NpugxCompiler,), ASKING if given.asks else {})()
    engine = Engine(compiler, sizes, given.handles, given.single_values, given.real)
    run = engine.compile(model)
    difference, first = 0.0, 0.0
    with torch.no_grad():
        for length in given.lengths:
            ids = torch.randint(0, 1024, (1, length))
            if not first:
                torch._dynamo.mark_dynamic(ids, 1)
            started = time.process_time()
            logits = run(input_ids=ids, use_cache=False).logits
            first = first or time.process_time() - started
            expected = model(input_ids=ids, use_cache=False).logits
            difference = max(difference, float((logits - expected).abs().max()))
    print(
        json.dumps(
            {
                "difference": difference,
                "pieces": len(engine.pieces),
                "entries": len({handle[0] for handle in engine.handles.values()}),
                "compiled": engine.compiled,
                "loaded": engine.loaded,
                "compiler_cpu": engine.cpu_seconds,
                "first_cpu": first,
                "info": list(compiled.counters.info(0)[:4]),
                "warnings": warnings,
            }
        )
    )


if __name__ == "__main__":
    main()
