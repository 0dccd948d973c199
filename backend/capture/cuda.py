"""CUDA: torch.cuda.CUDAGraph."""

from __future__ import annotations

from typing import Any

import torch

from npugx_cache.backend.capture.streamed import StreamedDevice


class CudaDevice(StreamedDevice):
    # Libraries load kernels and make handles at their first use, which a capture would refuse.
    warm_up_calls = 1

    def __init__(self, kind: str, index: int) -> None:
        super().__init__(kind, index, torch.cuda)

    def new_graph(self) -> Any:
        return torch.cuda.CUDAGraph()


DEVICE = CudaDevice
