"""A small serving loop on vLLM's own compiler classes, on a CPU: cold, then restarted.

    python examples/engine_cpu.py        # twice: the second start compiles nothing

It needs vLLM's Python code and none of its kernels. vLLM's entry points are loaded as a worker
loads them, so `npugx_cache` has to be installed. The variables are set here for the example; a
deployment exports them.
"""

from __future__ import annotations

import os
import time
from typing import Any

os.environ.setdefault("NPUGX_CACHE_VLLM", "1")
os.environ.setdefault("NPUGX_CACHE_LOG", "info")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from torch import nn
from vllm.compilation.backends import CompilerManager
from vllm.compilation.piecewise_backend import get_fake_args_from_graph
from vllm.config import CompilationConfig
from vllm.config.utils import Range
from vllm.plugins import load_general_plugins

WIDTH, SIZES = 64, Range(start=1, end=256)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.down(nn.functional.silu(self.up(x)))
        return x + inner


def compiled_by_the_engine(manager: CompilerManager, config: CompilationConfig) -> Any:
    """A backend of Dynamo that asks vLLM's manager, as vLLM does for each piece of a model."""

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        inputs = get_fake_args_from_graph(graph)
        return manager.compile(graph, inputs, {}, config, SIZES)

    return backend


def main() -> None:
    load_general_plugins()
    config = CompilationConfig()
    try:
        manager = CompilerManager(config, use_aot_compile=True)
    except TypeError:  # vLLM 0.27
        manager = CompilerManager(config)
    manager.initialize_cache(os.devnull, disable_cache=False)
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(4))).eval()
    backend = compiled_by_the_engine(manager, config)
    serve = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for tokens in (16, 3, 200):
            x = torch.randn(tokens, WIDTH)
            started = time.perf_counter()
            result = serve(x)
            took = 1000 * (time.perf_counter() - started)
            equal = torch.equal(result, model(x))
            print(f"{tokens} tokens: {took:.0f} ms, equal to eager: {equal}")


if __name__ == "__main__":
    main()
