"""A serving loop on vLLM's own compiler classes, on a CPU: run it twice, and the second start hits.

It needs vLLM's Python code and none of its kernels. vLLM loads the entry point of `npugx_cache` as
it does in a worker. A deployment exports the variables that are set here.
"""

import os
import time

os.environ.setdefault("NPUGX_CACHE_VLLM", "1")
os.environ.setdefault("NPUGX_CACHE_LOG", "info")

import torch
from torch import nn
from vllm.compilation.backends import CompilerManager
from vllm.compilation.piecewise_backend import get_fake_args_from_graph
from vllm.config import CompilationConfig
from vllm.config.utils import Range
from vllm.plugins import load_general_plugins


def block(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))


def main() -> None:
    load_general_plugins()
    config = CompilationConfig()
    try:
        manager = CompilerManager(config, use_aot_compile=True)
    except TypeError:  # vLLM 0.27
        manager = CompilerManager(config)
    manager.initialize_cache(os.devnull)

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        """Asks vLLM's manager, as vLLM does for each piece of a model."""
        inputs = get_fake_args_from_graph(graph)
        return manager.compile(graph, inputs, {}, config, Range(start=1, end=256))

    torch.manual_seed(0)
    model = nn.Sequential(*(block() for _ in range(4))).eval()
    serve = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for tokens in (16, 3, 200):
            x = torch.randn(tokens, 64)
            started = time.perf_counter()
            result = serve(x)
            took = 1000 * (time.perf_counter() - started)
            print(
                f"{tokens} tokens: {took:.0f} ms, equal to eager: {torch.equal(result, model(x))}"
            )


if __name__ == "__main__":
    main()
