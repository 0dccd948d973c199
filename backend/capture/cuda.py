"""CUDA: torch.cuda.CUDAGraph. Read against torch's sources; it has not been run on a GPU yet."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend.capture.streamed import StreamedDevice
from npugx_cache.private import cuda

if TYPE_CHECKING:
    from collections.abc import Iterator


class CudaDevice(StreamedDevice):
    # Libraries load kernels and make handles at their first use, which a capture would refuse.
    warm_up_calls = 1
    # NCCL's watchdog asks for events, and other threads allocate, whenever they like. Under
    # "global" that would fail in them, and a watchdog that fails ends the process.
    error_mode = "thread_local"

    def __init__(self, kind: str, index: int) -> None:
        super().__init__(kind, index, torch.cuda, torch.cuda.CUDAGraph)

    @contextlib.contextmanager
    def capture_stream(self) -> Iterator[Any]:
        """Give every graph a workspace of its own for matrix products, in its own pool.

        cuBLAS keeps one per thread and stream: graphs of different functions, captured on the one
        stream, would share it, and they may be replayed at the same time on different streams.
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
        except Exception:  # noqa: BLE001 - then torch has not told its allocator of the end
            cuda.leave_pool(self.index, pool)
        with contextlib.suppress(Exception):
            graph.reset()


DEVICE = CudaDevice
