"""Turns functional forms of operators that write back into a copy and a write.

Functionalisation turns `op_(x)` into `auto_functionalized(op_, x)`, which applies `op_` to a copy
of `x` and returns the copy. torch_npu has operators `foo_functional` that do the same for `foo`.
These passes turn each such call into `clone` and the operator that writes; later passes drop the
clones that nobody needs.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from npugx_cache.backend import lowering
from npugx_cache.backend.passes import layout
from npugx_cache.private import schemas

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten


def decompose_auto_functionalized(graph: fx.Graph) -> int:
    """Replace each `auto_functionalized` call, because a stored program can't call it."""
    rewritten = 0
    for node in list(graph.nodes):
        if not schemas.is_auto_functionalized(node.target) or not _is_unpacked(node):
            continue
        values = lowering.inline(node, lowering.without_functionalisation(node.target, _copied))
        if values is not None:
            _unpack(node, values)
            rewritten += 1
    return rewritten


def decompose_functional_variants(graph: fx.Graph) -> int:
    """Replace each call of a `foo_functional` for which there is a `foo`."""
    rewritten = 0
    for node in list(graph.nodes):
        variant = schemas.mutating_variant(node.target) if node.op == "call_function" else None
        if variant is not None and (_is_unpacked(node) or _returns_one(node)):
            _unpack(node, _written(node, variant))
            rewritten += 1
    return rewritten


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if layout.is_dense(value) and layout.same(value.storage_offset(), 0):
        return aten.clone.default(value)
    return lowering.clone_preserve_strides(value)


def _is_unpacked(node: fx.Node) -> bool:
    return all(user.target is operator.getitem for user in node.users)


def _returns_one(node: fx.Node) -> bool:
    schema = schemas.schema_of(node.target)
    return schema is not None and len(schema.returns) == 1


def _written(node: fx.Node, variant: Any) -> list[fx.Node]:
    """Insert a call of `variant` on clones before the node; return what the node's call returns."""
    schema = schemas.schema_of(variant)
    assert schema is not None
    args, kwargs, clones = list(node.args), dict(node.kwargs), []
    with node.graph.inserting_before(node):
        for index, argument in enumerate(schema.arguments):
            if argument.written:
                source = schemas.given(node, argument.name)
                clones.append(node.graph.call_function(aten.clone.default, (source,)))
                if argument.name in kwargs:
                    kwargs[argument.name] = clones[-1]
                else:
                    args[index] = clones[-1]
        call = node.graph.call_function(variant, tuple(args), kwargs)
        results = [call]
        if len(schema.returns) != 1:
            results = [
                node.graph.call_function(operator.getitem, (call, index))
                for index in range(len(schema.returns))
            ]
    for new in (*clones, call, *(each for each in results if each is not call)):
        lowering.trace_value(new)
    return [*results, *clones]


def _unpack(node: fx.Node, values: Sequence[Any]) -> None:
    """Replace each result of a call by the value of the same index, and erase the call."""
    if not _is_unpacked(node):
        node.replace_all_uses_with(values[0])
    for user in list(node.users):
        user.replace_all_uses_with(values[user.args[1]])  # type: ignore[index]
        node.graph.erase_node(user)
    node.graph.erase_node(node)
