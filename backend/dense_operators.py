"""Operators on functions that lowering replaces by what torch does for real tensors.

These functions compute on whole tensors, without a choice that depends on data. So their operators
become part of the lowered graph, where passes see them and captures may hold them, and a stored
program needs no graph inside it. Importing this module loads the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._higher_order_ops.associative_scan import generic_associative_scan
from torch._higher_order_ops.flex_attention import flex_attention as torchs_operator
from torch._higher_order_ops.flex_attention import sdpa_dense

from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CASTS_FIRST = any(key.name == "AutocastCPU" for key in torchs_operator.py_kernels)
"""Since torch 2.11. Before, each operator of `sdpa_dense` casts what it is given, or does not."""


def flex_attention(query: Any, key: Any, value: Any, *rest: Any) -> Any:
    """`sdpa_dense`, and under autocast what `_flex_attention_autocast_impl` does around it.

    As in eager, the scores of all positions are one matrix.
    """
    kind = query.device.type
    if not (_CASTS_FIRST and torch.is_autocast_enabled(kind)):
        return sdpa_dense(query, key, value, *rest)
    dtype = torch.get_autocast_dtype(kind)
    query, key, value = (_cast(each, kind, dtype) for each in (query, key, value))
    with runtime.disable_autocast():
        return sdpa_dense(query, key, value, *rest)


def _cast(tensor: torch.Tensor, kind: str, dtype: torch.dtype) -> torch.Tensor:
    """What autocast does to an argument: it leaves integers and float64 alone."""
    eligible = tensor.is_floating_point() and tensor.device.type == kind
    return tensor.to(dtype) if eligible and tensor.dtype != torch.float64 else tensor


def associative_scan(
    function: Callable[..., Any], scanned: Sequence[torch.Tensor], others: Sequence[Any]
) -> Any:
    """`associative_scan_op_dense`, which calls the function for all pairs of neighbours at once."""
    scan: Any = generic_associative_scan
    return scan(function, scanned, additional_inputs=others)


_OPERATORS: dict[str, Callable[..., Any]] = {
    "associative_scan": associative_scan,
    "flex_attention": flex_attention,
}


def dense_form(target: Any) -> Callable[..., Any] | None:
    """The function that replaces an operator; None for any other."""
    named = runtime.operator_name(target)
    return _OPERATORS.get(named[1]) if named is not None and named[0] == "hop" else None
