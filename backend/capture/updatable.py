"""Operators that take lengths on the host, which a captured graph can be given anew. Data alone.

A call of one of them is captured as a task of its own (`capture.tasks`). Operators that return
their results are made to write them to given tensors first (`passes.workspaces`): an update must
not allocate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_FUSED = ("actual_seq_lengths", "actual_seq_lengths_kv", "actual_shared_prefix_len")
_FUSED_V2 = ("actual_seq_qlen", "actual_seq_kvlen")

UPDATABLE: Mapping[str, tuple[str, ...]] = {
    "npu::npu_fused_infer_attention_score.out": _FUSED,
    "npu::npu_fused_infer_attention_score_v2.out": _FUSED_V2,
    "atb::_npu_paged_attention": ("context_lens",),
    "atb::_npu_paged_attention_splitfuse": ("context_lens", "seq_len"),
}
"""The parameters of each operator ("namespace::name.overload") that may change between replays."""

WORKSPACES: Mapping[str, str] = {
    "npu::npu_fused_infer_attention_score": "_npu_fused_infer_attention_score_get_max_workspace",
    "npu::npu_fused_infer_attention_score_v2": (
        "_npu_fused_infer_attention_score_v2_get_max_workspace"
    ),
}
"""Operators that need scratch memory, and the one that allocates what any lengths need."""

BESIDE: Mapping[str, tuple[str, ...]] = {
    "npu::_npu_fused_infer_attention_score_get_max_workspace": _FUSED,
    "npu::_npu_fused_infer_attention_score_v2_get_max_workspace": _FUSED_V2,
}
"""Operators that take the same parameters, and whose result holds for all values of them."""


def key(namespace: str, name: str, overload: str) -> str:
    """How an operator is called in the tables above: without an overload that says nothing."""
    return f"{namespace}::{name}" + (f".{overload}" if overload not in ("", "default") else "")
