"""Compares the layouts of traced tensors. The answers hold for all sizes that the graph accepts.

Sizes may be symbolic. No function here evaluates a comparison that would add a guard: sizes that
are not known to be equal count as different.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from npugx_cache.backend import lowering


def tensor(node: Any) -> torch.Tensor | None:
    """The traced tensor of a node; None if its value is not a tensor or was never traced."""
    value = node.meta.get("val") if hasattr(node, "meta") else None
    return value if isinstance(value, torch.Tensor) else None


def same(left: Any, right: Any) -> bool:
    """Whether two sizes are known to be equal."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    return bool(_expression(left) == _expression(right))


def same_sizes(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dim() == right.dim() and all(map(same, left.shape, right.shape))


def same_numel(left: torch.Tensor, right: torch.Tensor) -> bool:
    return same(math.prod(left.shape), math.prod(right.shape))


def same_kind(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether dtype, device and lazy flags are equal, so that equal bytes mean equal values."""
    return (
        left.dtype == right.dtype
        and left.device == right.device
        and left.is_conj() == right.is_conj()
        and left.is_neg() == right.is_neg()
    )


def same_strided(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether kind, sizes and strides are equal; the offsets may differ."""
    return (
        same_kind(left, right)
        and same_sizes(left, right)
        and all(map(same, left.stride(), right.stride()))
    )


def same_layout(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether kind, sizes, strides and offset are equal, so that one can replace the other."""
    return same_strided(left, right) and same(left.storage_offset(), right.storage_offset())


def is_contiguous(value: torch.Tensor) -> bool:
    """Whether the elements are known to lie in row-major order from the start of the storage."""
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not same(stride, expected):
            return False
        expected = expected * size
    return same(value.storage_offset(), 0)


def is_dense(value: torch.Tensor) -> bool:
    """Whether the elements are known to fill a range of memory without gaps and overlaps."""
    expected: Any = 1
    dimensions = [
        (size, stride)
        for size, stride in zip(value.shape, value.stride(), strict=True)
        if not same(size, 1)
    ]
    while dimensions:
        fitting = [at for at, (_, stride) in enumerate(dimensions) if same(stride, expected)]
        if len(fitting) != 1:
            return False
        # pop(), because remove() would compare sizes, and each such comparison adds a guard.
        size, _ = dimensions.pop(fitting[0])
        expected = expected * size
    return True


def fills(value: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether a view `value` of `whole` has all elements of `whole`."""
    return (
        value.dtype == whole.dtype
        and same_numel(value, whole)
        and same(value.storage_offset(), 0)
        and is_dense(value)
        and is_dense(whole)
    )


def _expression(size: Any) -> Any:
    return size if isinstance(size, int) else size.node.expr


# --- sizes as arguments in a graph: numbers, or nodes that compute a symbolic size


aten = torch.ops.aten


class Sizes:
    """Finds and computes sizes that are available before the node `before`."""

    def __init__(self, before: fx.Node) -> None:
        self._before = before
        self._known: dict[Any, fx.Node] = {}
        self._tensors: list[fx.Node] = []
        for node in before.graph.nodes:
            if node is before:
                break
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt):
                self._known.setdefault(value.node.expr, node)
            elif node.op == "placeholder" and isinstance(value, torch.Tensor):
                self._tensors.append(node)

    def value(self, size: Any) -> int | fx.Node | None:
        """A size as an argument of a call; None if no value before the node has this size."""
        if isinstance(size, int):
            return size
        found = self._known.get(size.node.expr)
        return found if found is not None else self._measured(size)

    def add(self, left: Any, right: Any) -> int | fx.Node:
        if isinstance(left, int) and isinstance(right, int):
            return left + right
        return self._computed(operator.add, (left, right))

    def _measured(self, size: Any) -> fx.Node | None:
        for node in self._tensors:
            for dim, length in enumerate(node.meta["val"].shape):
                if not isinstance(length, int) and same(length, size):
                    measured = self._computed(aten.sym_size.int, (node, dim))
                    self._known[size.node.expr] = measured
                    return measured
        return None

    def _computed(self, function: Any, args: tuple[Any, ...]) -> fx.Node:
        with self._before.graph.inserting_before(self._before):
            node = self._before.graph.call_function(function, args)
        lowering.trace_value(node)
        return node
