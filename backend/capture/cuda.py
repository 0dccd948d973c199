"""Capture with torch.cuda.CUDAGraph."""

from __future__ import annotations

import contextlib
import warnings
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

    def end(self, graph: Any) -> None:
        with warnings.catch_warnings():
            # A program of views alone launches nothing. torch warns of its graph as of a mistake.
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            super().end(graph)

    def abandon(self, graph: Any, pool: Any) -> None:
        try:
            graph.capture_end()
        except Exception:  # noqa: BLE001 - torch's allocator and generator do not know of the end
            cuda.leave_pool(self.index, pool)
            self._end_capture_of_random_numbers()
        with contextlib.suppress(Exception):
            graph.reset()

    def _end_capture_of_random_numbers(self) -> None:
        """Capture nothing, so that torch's generator of random numbers leaves its capture.

        `CUDAGraph.capture_end` tells the generator after the device has ended the capture. If the
        device fails then, the generator stays as in a capture, and each later random number of the
        process raises "Offset increment outside graph capture encountered unexpectedly".
        """
        nothing = self._new_graph()
        nothing.capture_begin(capture_error_mode=self.error_mode)
        nothing.capture_end()
        nothing.reset()


DEVICE = CudaDevice
