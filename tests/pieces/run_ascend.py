"""vllm-ascend's own pass manager and MulsAddFusionPass under `NpugxCompiler`, on a CPU.

python run_ascend.py SCALE prints what came of one graph. The scale is also what the engine calls
the hash of its configuration. VLLM_ASCEND names the folder of
vllm-ascend's package, whose `__init__` asks for torch_npu and is not run. The vendor's register of
patterns, and the kernel that the pass puts in, are stand-ins.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import types

os.environ["VLLM_USE_MEGA_AOT_ARTIFACT"] = "0"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch
from vllm.compilation.passes.inductor_pass import pass_context
from vllm.config import CompilationConfig
from vllm.config.utils import Range

from npugx_cache.integrations.vllm import NpugxCompiler
from npugx_cache.pieces import compiled

library = torch.library.Library("vllm", "FRAGMENT")
library.define("muls_add(Tensor x, Tensor y, float scale) -> Tensor")


def muls_add(x, y, scale):
    return torch.add(torch.mul(x, scale), y)


library.impl("muls_add", muls_add, "CPU")
torch.library.register_fake("vllm::muls_add", lambda x, y, scale: torch.empty_like(x))


def model(x, y, w):
    return (torch.relu(x @ w) * 2.5 + y,)


def passes_of_ascend():
    vendor = types.ModuleType("npugraph_ex")
    vendor.register_replacement = lambda **given: None
    sys.modules["npugraph_ex"] = vendor
    package = types.ModuleType("vllm_ascend")
    package.__path__ = [os.environ["VLLM_ASCEND"]]
    sys.modules["vllm_ascend"] = package
    from vllm_ascend.compilation.graph_fusion_pass_manager import GraphFusionPassManager
    from vllm_ascend.compilation.passes import muls_add_pass

    return GraphFusionPassManager, muls_add_pass


def main(scale):
    manager_class, muls_add_pass = passes_of_ascend()
    # The one line of the pass that needs an NPU.
    muls_add_pass.MulsAddPattern.get_inputs = lambda self: [torch.randn(2, 64), torch.randn(2, 64)]
    config = types.SimpleNamespace(
        model_config=types.SimpleNamespace(
            dtype=torch.float32, hf_text_config=types.SimpleNamespace(routed_scaling_factor=scale)
        ),
        compilation_config=CompilationConfig(),
        device_config=None,
        additional_config={},
        lock=threading.Lock(),
    )
    manager, runs = manager_class(), []
    manager.add(muls_add_pass.MulsAddFusionPass(config))
    logger = logging.getLogger("vllm.compilation.passes.vllm_inductor_pass")
    logger.setLevel(logging.DEBUG)
    logger.addFilter(lambda record: runs.append(record.getMessage()))
    warnings = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("npugx_cache").addHandler(handler)

    def backend(graph, inputs):
        compiler = NpugxCompiler()
        compiler.compute_hash(types.SimpleNamespace(compute_hash=lambda: str(scale)))
        compiler.initialize_cache("/unused")
        size = Range(start=1, end=64)
        with pass_context(size):
            run, _ = compiler.compile(graph, inputs, {"graph_fusion_manager": manager}, size)
        return run

    x, y, w = torch.randn(16, 64), torch.randn(16, 64), torch.randn(64, 64)
    for tensor in (x, y):
        torch._dynamo.mark_dynamic(tensor, 0)
    run = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        run(x, y, w)
        with torch.profiler.profile() as profile:
            (result,) = run(x, y, w)
    fused = any(each.key == "vllm::muls_add" for each in profile.key_averages())
    found = {
        "difference": float((result - model(x, y, w)[0]).abs().max()),
        "info": list(compiled.counters.info(0)[:4]),
        "fused": fused,
        "runs": len(runs),
        "warnings": warnings,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(float(sys.argv[1]))
