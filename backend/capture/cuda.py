"""Capture with torch.cuda.CUDAGraph. Written against torch's sources, not run on a GPU yet."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend.capture.streamed import StreamedDevice
from npugx_cache.private import cuda

if TYPE_CHECKING:
    from collections.abc import Iterator


class CudaDevice(StreamedDevice):
    # Libraries load kernels and create handles at their first use. A capture would refuse both, so
    # the first call of a shape runs uncaptured.
    warm_up_calls = 1
    # NCCL's watchdog queries events, and other threads allocate memory, at any time. In the mode
    # "global" these calls would fail during a capture, and a failing watchdog ends the process.
    error_mode = "thread_local"

    def __init__(self, kind: str, index: int) -> None:
        super().__init__(kind, index, torch.cuda, torch.cuda.CUDAGraph)

    @contextlib.contextmanager
    def capture_stream(self) -> Iterator[Any]:
        """Give every graph its own workspace for matrix products, in the graph's pool.

        cuBLAS keeps one workspace per thread and stream, and we capture all graphs on one stream.
        Without this, graphs of different functions would share a workspace and could be replayed
        at the same time on different streams.
        """
        with super().capture_stream() as stream:
            cuda.make_blas_handle()
            cuda.clear_blas_workspaces()
            try:
                yield stream
            finally:
                cuda.clear_blas_workspaces()

    def abandon(self, graph: Any, pool: Any) -> None:
        try:
            graph.capture_end()
        except Exception:  # noqa: BLE001 - torch has not told its allocator that the capture ended
            cuda.leave_pool(self.index, pool)
        with contextlib.suppress(Exception):
            graph.reset()


DEVICE = CudaDevice
