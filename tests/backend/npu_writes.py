"""Run as a script: what the passes make of the NPU's functional operators, as JSON."""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import npu_lookalikes

from npugx_cache.backend import engines, options
from npugx_cache.backend.lowering import lower
from npugx_cache.backend.passes.npu.norms import fuse_norms

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


def flat(x1, x2, gamma):
    y, _, x = ops.npu_add_rms_norm(x1, x2, gamma, 0.25)
    values, scale = ops.npu_dynamic_quant(y.view(4, 3))
    return values, scale.view(4, 1), x


def alone(x1, x2, gamma):
    return ops.npu_dynamic_quant(ops.npu_add_rms_norm(x1, x2, gamma)[0])[0]


def fusions(function, *inputs):
    """How many norms are fused, and the calls of what is left."""
    graph = lower(function, inputs, None)
    if function is alone:  # as another pass leaves the graph
        graph.graph.eliminate_dead_code()
    count = fuse_norms(graph.graph)
    graph.recompile()
    torch.testing.assert_close(graph(*inputs), function(*inputs))
    calls = [n for n in graph.graph.nodes if n.op == "call_function"]
    return count, [f"{n.name} = {n.target}{n.args} {n.kwargs}" for n in calls]


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
    two = torch.ones(2, 3), torch.ones(2, 3), torch.ones(3)
    deep = torch.randn(2, 2, 3), torch.randn(2, 2, 3), torch.randn(3)
    seen["no fused one"] = fusions(quantised, *two)
    npu_lookalikes.define_the_fused_one()
    seen["fused"] = fusions(quantised, *two)
    seen["flat"] = fusions(flat, *deep)
    seen["alone"] = fusions(alone, *two)
    print(json.dumps(seen))
