"""Tables of operators that take lengths on the host, which each replay can change.

A call of such an operator is captured as a separate task (`capture.tasks`). A pass first rewrites
operators that return new tensors so that they write to given tensors (`passes.workspaces`), because
an update must not allocate memory.
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
"""Operators that need scratch memory, each with the one that allocates enough for any lengths."""

BESIDE: Mapping[str, tuple[str, ...]] = {
    "npu::_npu_fused_infer_attention_score_get_max_workspace": _FUSED,
    "npu::_npu_fused_infer_attention_score_v2_get_max_workspace": _FUSED_V2,
}
"""Further operators that take lengths, but whose result is right for all lengths."""


def key(namespace: str, name: str, overload: str) -> str:
    """The name of an operator in the tables above: without its overload if that is "default"."""
    return f"{namespace}::{name}" + (f".{overload}" if overload not in ("", "default") else "")
