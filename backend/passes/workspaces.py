"""Gives attention calls their memory: `op(...)` becomes `op.out(..., workspace=, out=)`.

A replay can give a captured call other lengths only if the call allocates no memory. This pass runs
after all others.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from npugx_cache.backend import lowering
from npugx_cache.backend.capture.updatable import WORKSPACES
from npugx_cache.backend.passes import layout
from npugx_cache.private import schemas

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten


def give_workspaces(graph: fx.Graph) -> int:
    """Rewrite each call whose result sizes follow from its inputs; returns how many."""
    rewritten = 0
    for node in list(graph.nodes):
        schema = schemas.schema_of(node.target)
        if schema is not None and schema.name in WORKSPACES and not schema.overload:
            rewritten += _rewrite(node, WORKSPACES[schema.name], schema.name)
    return rewritten


def _rewrite(node: fx.Node, workspace: str, name: str) -> bool:
    out = schemas.sibling(node.target, name.partition("::")[2], "out")
    allocate = schemas.sibling(node.target, workspace, "default")
    values = node.meta.get("val")
    if out is None or allocate is None or not isinstance(values, (list, tuple)):
        return False
    if any(user.target is not operator.getitem for user in node.users):
        return False
    sizes = [_sizes(node, value) for value in values]
    if not all(size is not None for size in sizes):
        return False
    graph = node.graph
    with graph.inserting_before(node):
        scratch = graph.call_function(allocate, node.args, dict(node.kwargs))
        empty = [_empty(node, s or (), v) for s, v in zip(sizes, values, strict=True)]
        kwargs = {**node.kwargs, "workspace": scratch, "out": empty}
        call = graph.call_function(out, node.args, kwargs)
    call.meta = {**node.meta, "val": [each.meta["val"] for each in empty]}
    for user in node.users:
        user.meta["val"] = call.meta["val"][user.args[1]]
    node.replace_all_uses_with(call)
    graph.erase_node(node)
    return True


def _sizes(node: fx.Node, value: Any) -> tuple[Any, ...] | None:
    """The sizes of a result, each a number or the (input, dimension) that has the same size."""
    if not isinstance(value, torch.Tensor) or not layout.is_contiguous(value):
        return None
    sizes = tuple(_size(node, size) for size in value.shape)
    return None if None in sizes else sizes


def _size(node: fx.Node, size: Any) -> Any:
    if isinstance(size, int):
        return size
    for source in node.all_input_nodes:
        given = source.meta.get("val")
        for dimension, other in enumerate(given.shape if isinstance(given, torch.Tensor) else ()):
            if layout.same(size, other):
                return (source, dimension)
    return None


def _empty(node: fx.Node, sizes: Sequence[Any], value: torch.Tensor) -> fx.Node:
    graph = node.graph
    numbers: list[Any] = []
    for size in sizes:
        if isinstance(size, int):
            numbers.append(size)
            continue
        numbers.append(graph.call_function(aten.sym_size.int, size))
        lowering.trace_value(numbers[-1])
    made = graph.call_function(
        aten.empty.memory_format, (numbers,), {"dtype": value.dtype, "device": value.device}
    )
    made.meta["val"] = value
    return made
