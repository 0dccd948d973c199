"""Private names of torch_npu, where it is loaded. Checked on torch_npu 2.13."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def unowned(tensor: torch.Tensor) -> torch.Tensor:
    """As `runtime.unowned`; memory on an NPU may be laid out in a format of its own."""
    made: torch.Tensor = sys.modules["torch_npu"]._C._weak_ref_tensor(tensor)
    return made


@contextlib.contextmanager
def operators_dumped(folder: str) -> Iterator[None]:
    """Have CANN describe each operator that is launched inside, in files under a folder.

    This is a state of the whole process.
    """
    native = sys.modules["torch_npu"]._C
    native._aclop_start_dump(folder)
    try:
        yield
    finally:
        native._aclop_stop_dump()


def is_cann_from(version: str) -> bool:
    """Whether CANN has this version, or a later one."""
    return bool(sys.modules["torch_npu.npu.utils"]._is_gte_cann_version(version, module="CANN"))


def cann_versions() -> str:
    """Of CANN, and of its parts that kernels are compiled with."""
    utils = sys.modules["torch_npu.npu.utils"]
    parts = ("CANN", "COMPILER", "OPP", "OPP_KERNEL")
    return " ".join(f"{part}={utils.get_cann_version(part)}" for part in parts)


def has_kernel_folders() -> bool:
    """Whether static kernels can be used from a folder of this process's own."""
    api = sys.modules["torch_npu"].npu
    return hasattr(api, "_aclnn_reselect_static_kernel_with_path") and is_cann_from("9.1.0")


def select_static_kernels(folder: str | None) -> None:
    """Use the kernels that are installed now: in `folder`, or in CANN's own."""
    api = sys.modules["torch_npu"].npu
    if folder is None:
        api._aclnn_reselect_static_kernel()
    else:
        api._aclnn_reselect_static_kernel_with_path(folder)
