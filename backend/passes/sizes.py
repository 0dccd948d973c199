"""Sizes as values of a graph: numbers, or nodes that compute a symbolic size."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from npugx_cache._compat import lowering
from npugx_cache.backend.passes import layout

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
        """A size as an argument of a call; None for one that nothing before the node has."""
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
                if not isinstance(length, int) and layout.same(length, size):
                    measured = self._computed(aten.sym_size.int, (node, dim))
                    self._known[size.node.expr] = measured
                    return measured
        return None

    def _computed(self, function: Any, args: tuple[Any, ...]) -> fx.Node:
        with self._before.graph.inserting_before(self._before):
            node = self._before.graph.call_function(function, args)
        lowering.trace_value(node)
        return node
