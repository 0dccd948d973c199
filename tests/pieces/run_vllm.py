"""vLLM's own `CompilerManager` drives `NpugxCompiler` for one graph, with one dynamic size.

python run_vllm.py FOLDER prints what came of it. FOLDER holds the handles, as vLLM keeps them.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from pathlib import Path

os.environ["VLLM_USE_MEGA_AOT_ARTIFACT"] = "0"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch
from vllm.compilation.backends import CompilerManager
from vllm.compilation.compiler_interface import CompilerInterface
from vllm.compilation.piecewise_backend import create_concrete_args, get_fake_args_from_graph
from vllm.config import CompilationConfig
from vllm.config.utils import Range
from vllm.platforms import current_platform

from npugx_cache.pieces import compiled

NAME = "npugx_cache.integrations.vllm.NpugxCompiler"


def main(folder):
    type(current_platform).get_compile_backend = classmethod(lambda cls: NAME)
    config = CompilationConfig(backend="npugx")
    named = inspect.signature(CompilerManager).parameters
    extra = {"use_aot_compile": True} if "use_aot_compile" in named else {}  # newer than vLLM 0.27
    manager = CompilerManager(config, **extra)
    assert isinstance(manager.compiler, CompilerInterface)
    assert manager.compute_hash(None)
    folder.mkdir(exist_ok=True)
    manager.initialize_cache(str(folder), prefix="backbone")
    ranges = [Range(start=1, end=64), Range(start=16, end=16)]
    runs = {}

    def backend(graph, example_inputs):
        for each in ranges:
            single = each.is_single_size()
            inputs = (
                create_concrete_args(graph, each.start)
                if single
                else get_fake_args_from_graph(graph)
            )
            runs[each] = manager.compile(graph, inputs, {}, config, each)
        return graph.forward

    def model(x, w):
        return (torch.relu(x @ w),)

    x, w = torch.randn(16, 8), torch.randn(8, 8)
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        expected = torch.compile(model, backend=backend, fullgraph=True)(x, w)
        manager.save_to_file()
        difference = max(
            float((run(16, x, w)[0] - expected[0]).abs().max()) for run in runs.values()
        )
    info = list(compiled.counters.info(0)[:4])
    handles = [value["graph_handle"] for value in manager.cache.values()]
    print(json.dumps({"difference": difference, "info": info, "handles": len(handles)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
