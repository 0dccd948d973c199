"""sglang's own backend cuts a model at attention, and has `NpugxCompiler` compile the pieces.

python run_sglang.py prints what came of it. The entry point of this package must be on the path.
"""

from __future__ import annotations

import json
import logging
import sys
import types

import torch
from torch import nn

# A kernel for GPUs and NPUs alone, without which the backend of sglang can not be loaded.
KERNELS = "sglang.srt.model_executor.runner_backend_utils.weak_ref_tensor"
WIDTH, LAYERS = 8, 3


@torch.library.custom_op("sglang::attend", mutates_args=())
def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.T, -1) @ v


attend.register_fake(lambda q, k, v: torch.empty_like(q))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.out(torch.ops.sglang.attend(*self.qkv(x).chunk(3, -1)))


def main():
    sys.modules[KERNELS] = types.ModuleType(KERNELS)
    sys.modules[KERNELS].weak_ref_tensors = None
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.compilation.backend import SGLangBackend
    from sglang.srt.compilation.compilation_config import CompilationConfig

    from npugx_cache.pieces import compiled

    warnings = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("npugx_cache").addHandler(handler)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(LAYERS))).eval()
    config = CompilationConfig([])
    config.add_split_op("sglang.attend")
    backend = SGLangBackend(config, object())
    run = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        x = torch.randn(16, WIDTH)
        torch._dynamo.mark_dynamic(x, 0)
        difference = float((run(x) - model(x)).abs().max())
        for length in (16, 5, 40):
            x = torch.randn(length, WIDTH)
            difference = max(difference, float((run(x) - model(x)).abs().max()))
    print(
        json.dumps(
            {
                "compiler": type(backend.compiler_manager.compiler).__name__,
                "difference": difference,
                "info": list(compiled.counters.info(0)[:4]),
                "handles": len(backend.compiler_manager.cache),
                "warnings": warnings,
            }
        )
    )


if __name__ == "__main__":
    main()
