"""The capture suite runs on one device: the CPU, or the one that NPUGX_TEST_DEVICE names."""

import os
import sys
from pathlib import Path

import pytest
import torch

from npugx_cache.backend.compile import compile_graph

sys.path.insert(0, str(Path(__file__).parent))

from capture_programs import graph_of

DEVICE = os.environ.get("NPUGX_TEST_DEVICE", "cpu")

if DEVICE == "cuda":
    # What a first use makes is made here, outside of any capture.
    torch.ones(8, 8, device=DEVICE).matmul(torch.ones(8, 8, device=DEVICE)).sum().item()
if DEVICE == "npu":
    import npu_sim

    npu_sim.install()
    torch.npu.set_compile_mode(jit_compile=False)  # or complex tensors are refused


@pytest.fixture
def device():
    return torch.device(DEVICE)


@pytest.fixture
def compiled(device):
    """Compile a function for capture alone: no passes stand between it and the runtime."""

    def compiled(function, *examples, static=(), **options):
        graph = graph_of(function, examples, static)
        run = compile_graph(graph, None, options, engine="npugraphs")
        if DEVICE == "cuda" and hasattr(run, "captures"):
            # The tests count graphs and replays from the first call on, as on other devices.
            run._device.warm_up_calls = 0
        return run

    return compiled
