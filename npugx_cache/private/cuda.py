"""Private names of torch for CUDA, and what CUDA's driver says of itself."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import torch


def driver_version() -> str:
    """The newest CUDA that the driver runs, as its library counts: `13000` is CUDA 13.0.

    torch has no function that tells the version. Call this only where a CUDA device is in use,
    because the driver's library is loaded then.
    """
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return str(version.value)


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
