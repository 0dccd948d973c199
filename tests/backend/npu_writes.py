"""Run as a script: what the passes make of the NPU's functional operators, as JSON."""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import npu_lookalikes  # noqa: F401

from npugx_cache.backend import engines, options
from npugx_cache.backend.lowering import lower

ops = torch.ops.npu


def rows(cache, at, value):
    cache.copy_(ops.npu_scatter_nd_update(cache.view(-1, 2), at, value).view(2, 2, 2))


def step(x, k, v):
    a, b, k2, v2 = ops.npu_rope_cache_functional(x, k, v, eps=0.5)
    k.copy_(k2)
    v.copy_(v2)
    return a * b


def kept(x, k, v):
    a, _, k2, v2 = ops.npu_rope_cache_functional(x, k, v * 2)
    return a, k2, v2


def quantised(x1, x2, gamma):
    y, _, x = ops.npu_add_rms_norm(x1, x2, gamma)
    return (*ops.npu_dynamic_quant(y), x)


def optimised(function, *inputs):
    graph = lower(function, inputs, None)
    engines.load("npugraph_ex").optimise(graph, options.Options(), distinct_inputs=True)
    mine, plain = [x.clone() for x in inputs], [x.clone() for x in inputs]
    torch.testing.assert_close(graph(*mine), function(*plain))
    torch.testing.assert_close(mine, plain)
    return [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]


if __name__ == "__main__":
    three = [torch.randn(3) for _ in range(3)]
    seen = {
        "rows": optimised(rows, torch.zeros(2, 2, 2), torch.tensor([[1]]), torch.ones(1, 2)),
        "step": optimised(step, *three),
        "kept": optimised(kept, *three),
        "quantised": optimised(quantised, torch.ones(2, 3), torch.ones(2, 3), torch.ones(3)),
    }
    print(json.dumps(seen))
