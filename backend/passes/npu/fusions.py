"""All fusions for the NPU: several calls become one fused operator that computes the same.

The patterns of users run before these. If you change what is fused, raise `patterns.NPU_FUSIONS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npugx_cache.backend.passes.npu.matmuls import fuse_matmuls
from npugx_cache.backend.passes.npu.norms import fuse_norms

if TYPE_CHECKING:
    from torch import fx


def fuse_for_npu(graph: fx.Graph) -> int:
    """Apply all fusions for which torch_npu has operators; returns how many matches were fused."""
    return fuse_norms(graph) + fuse_matmuls(graph)
