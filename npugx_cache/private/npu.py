"""Private names of torch_npu. Call them only where torch_npu is loaded."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def unowned(tensor: torch.Tensor) -> torch.Tensor:
    """As `runtime.unowned`, for a tensor on an NPU, whose memory may have a special format."""
    made: torch.Tensor = sys.modules["torch_npu"]._C._weak_ref_tensor(tensor)
    return made


@contextlib.contextmanager
def operators_dumped(folder: str) -> Iterator[None]:
    """Let CANN write a description of each operator that is launched inside, to files in a folder.

    This holds for the whole process.
    """
    native = sys.modules["torch_npu"]._C
    native._aclop_start_dump(folder)
    try:
        yield
    finally:
        native._aclop_stop_dump()


def is_cann_from(version: str) -> bool:
    """Whether the installed CANN has this version or a later one."""
    return bool(sys.modules["torch_npu.npu.utils"]._is_gte_cann_version(version, module="CANN"))


def cann_versions() -> str:
    """The versions of CANN and of its parts that compile kernels, as one text."""
    utils = sys.modules["torch_npu.npu.utils"]
    parts = ("CANN", "COMPILER", "OPP", "OPP_KERNEL")
    return " ".join(f"{part}={utils.get_cann_version(part)}" for part in parts)


def has_kernel_folders() -> bool:
    """Whether this process can use static kernels from a folder of its own."""
    api = sys.modules["torch_npu"].npu
    return hasattr(api, "_aclnn_reselect_static_kernel_with_path") and is_cann_from("9.1.0")


def select_static_kernels(folder: str | None) -> None:
    """Make CANN use the static kernels that are now in `folder`, or in its own folder if None."""
    api = sys.modules["torch_npu"].npu
    if folder is None:
        api._aclnn_reselect_static_kernel()
    else:
        api._aclnn_reselect_static_kernel_with_path(folder)
