"""Private names of torch_npu, where it is loaded. Checked on torch_npu 2.13."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def unowned(tensor: torch.Tensor) -> torch.Tensor:
    """As `runtime.unowned`; memory on an NPU may be laid out in a format of its own."""
    made: torch.Tensor = sys.modules["torch_npu"]._C._weak_ref_tensor(tensor)
    return made
