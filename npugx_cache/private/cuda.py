"""Private names of torch's CUDA part. Read in torch's sources, not run on a GPU."""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def driver_version() -> str:
    extension: Any = torch._C  # a CPU build has no such function, and no CUDA tensor to call it
    return str(extension._cuda_getDriverVersion())


def make_blas_handle() -> None:
    """Make this thread's handle of cuBLAS if it has none; a capture can't."""
    make: Any = torch.cuda.current_blas_handle
    make()


def clear_blas_workspaces() -> None:
    """Have cuBLAS take new workspaces at its next calls; none is in use by work not enqueued."""
    extension: Any = torch._C
    extension._cuda_clearCublasWorkspaces()


def leave_pool(index: int, pool: tuple[int, int]) -> None:
    """Undo what the allocator was told at the begin of a capture that could not be ended.

    Otherwise it would take the capture to last, and never give memory back to the device.
    """
    extension: Any = torch._C
    with contextlib.suppress(RuntimeError):  # it does know of the end
        extension._cuda_endAllocateToPool(index, pool)
        extension._cuda_releasePool(index, pool)
