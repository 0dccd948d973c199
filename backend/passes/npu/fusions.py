"""The NPU's fused operators: several calls become one where that computes the same.

Patterns that people register come first. A change of what is fused raises `patterns.NPU_FUSIONS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache.backend.passes.npu.matmuls import fuse_matmuls
from npugx_cache.backend.passes.npu.norms import fuse_norms

if TYPE_CHECKING:
    from torch import fx


def fuse_for_npu(graph: fx.Graph) -> int:
    """Apply the fusions that torch_npu has operators for; returns how many matches there were."""
    return fuse_norms(graph) + fuse_matmuls(graph)
