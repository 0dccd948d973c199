"""Private names of torch for CUDA. Written against torch's sources, not run on a GPU yet."""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def driver_version() -> str:
    extension: Any = torch._C  # a CPU build lacks this function, but has no CUDA tensors either
    return str(extension._cuda_getDriverVersion())


def make_blas_handle() -> None:
    """Make this thread's cuBLAS handle if it has none, because a capture can't make one."""
    make: Any = torch.cuda.current_blas_handle
    make()


def clear_blas_workspaces() -> None:
    """Make cuBLAS allocate new workspaces at its next calls.

    The old workspaces are freed in the order of their stream, so enqueued work can still use them.
    """
    extension: Any = torch._C
    extension._cuda_clearCublasWorkspaces()


def leave_pool(index: int, pool: tuple[int, int]) -> None:
    """Tell the allocator that a capture is over, after torch failed to end the capture.

    Otherwise the allocator would go on as during a capture, and never return memory to the device.
    """
    extension: Any = torch._C
    with contextlib.suppress(RuntimeError):  # the allocator knows already
        extension._cuda_endAllocateToPool(index, pool)
        extension._cuda_releasePool(index, pool)
