"""No-op removal: drop calls that return their input unchanged.

torch's own list of such operators, restricted to what stays right without functionalisation: a
result that is a fresh copy (`clone`) may be written to, so only operators that return an alias of
their input anyway (views, casts to the same type) are dropped. An alias that the function returns
is kept: eager hands out a new tensor object there, and the caller can tell.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def remove_noops(graph: fx.Graph) -> int:
    """Replace each no-op's uses by its input."""
    if any(_changes_metadata(node) for node in graph.nodes):
        return 0  # `y = x.view(...); y.t_()` must not become `x.t_()`
    removed = 0
    for node in list(graph.nodes):
        if node.target in _ALIASING and _same_layout(node) and not any(map(_sees, node.users)):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            removed += 1
    return removed


def _changes_metadata(node: fx.Node) -> bool:
    return torch.Tag.inplace_view in getattr(node.target, "tags", ())


def _sees(user: fx.Node) -> bool:
    """Whether a user hands its argument on as the very tensor object that a caller gets."""
    return user.op == "output" or user.is_impure()


def _same_layout(node: fx.Node) -> bool:
    """Same sizes, strides, offset and dtype, known to be equal without adding a guard."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    before, after = source.meta.get("val"), node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    pairs = [
        *zip(before.shape, after.shape, strict=False),
        *zip(before.stride(), after.stride(), strict=False),
        (before.storage_offset(), after.storage_offset()),
    ]
    return before.dim() == after.dim() and before.dtype == after.dtype and all(map(_equal, pairs))


def _equal(pair: tuple[Any, Any]) -> bool:
    left, right = (size if isinstance(size, int) else size.node.expr for size in pair)
    return bool(left == right)


_ALIASING = frozenset(
    {
        aten.alias.default,
        aten.detach.default,
        aten.view.default,
        aten.view.dtype,
        aten._unsafe_view.default,  # noqa: SLF001 - the name of an operator
        aten.expand.default,
        aten.slice.Tensor,
        aten.permute.default,
        aten.transpose.int,
        aten.squeeze.default,
        aten.squeeze.dim,
    }
)
