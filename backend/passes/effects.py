"""Tells what a single call does to memory: what it reads, writes, and returns views of.

An operator's schema says which arguments the operator writes to and which its results alias. Some
operators return an argument or a view although their schema does not say so: the known ones are
listed here, and composite operators are assumed to, because nobody checks their schemas. A call of
anything but an operator may do anything.
"""

from __future__ import annotations

import operator
from typing import NamedTuple

import torch
from torch import fx
from torch.fx.node import map_arg

from npugx_cache.backend.program import SCOPES
from npugx_cache.private import schemas

_SWITCHING = frozenset({"streams", "npugraph_ex"})
"""Namespaces of operators that switch the stream of later calls, or order streams."""

_SCOPES = frozenset(f"npugx_cache::{name}" for pair in SCOPES.items() for name in pair)
"""Operators that begin or end a scope."""

_UNDECLARED = frozenset(
    {
        "aten::_unsafe_view",
        "aten::unsafe_split",
        "aten::unsafe_split_with_sizes",
        "aten::lift",
        "aten::_lazy_clone",
        "aten::_pin_memory",
        "prims::device_put",
        "prims::convert_element_type",
    }
)
"""Operators that may return their argument or views of it although the schema says otherwise."""

WHOLE_STORAGE_COPIES = frozenset(
    {
        "aten::copy",
        "aten::slice_scatter",
        "aten::select_scatter",
        "aten::diagonal_scatter",
        "aten::as_strided_scatter",
    }
)
"""Operators whose result has the same offset in its storage as the first argument in its own.

They copy the whole storage of that argument.
"""

_ALLOCATING = frozenset({"aten::linear"})
"""Composite operators that always return new memory."""

_ASYNCHRONOUS = frozenset({"_c10d_functional", "c10d_functional"})
"""Operators of these namespaces use their inputs and results until `wait_tensor` has returned.

We treat their results as aliases of their inputs, so that a use of the result, such as
`wait_tensor`, counts as a use of the inputs.
"""


class Effects(NamedTuple):
    """What a call does to memory.

    aliased: the arguments with which its results may share memory.
    written: the arguments that it writes to.
    is_view: the call itself touches no memory.
    unknown: the call may do anything to memory from outside of the graph.
    """

    aliased: tuple[fx.Node, ...]
    written: tuple[fx.Node, ...]
    is_view: bool = False
    unknown: bool = False


def of(node: fx.Node) -> Effects:
    inputs = tuple(node.all_input_nodes)
    if node.op in ("placeholder", "get_attr", "output"):
        return Effects((), ())
    if node.target is operator.getitem:
        return Effects(inputs, (), is_view=True)
    schema = schemas.schema_of(node.target)
    if schema is not None:
        return _operator_effects(node, schema, inputs)
    if schemas.is_auto_functionalized(node.target):
        return Effects((), ())
    if node.op == "call_function" and not any(map(may_hold_tensors, (*inputs, node))):
        return Effects((), ())  # arithmetic on sizes
    return Effects(inputs, inputs, unknown=True)


def _operator_effects(
    node: fx.Node, schema: schemas.Schema, inputs: tuple[fx.Node, ...]
) -> Effects:
    written = _given(node, schema.written)
    undeclared = schema.name in _UNDECLARED or schema.namespace in _ASYNCHRONOUS
    if any(each.aliased for each in schema.returns):
        aliased = _given(node, schema.aliased)
        return Effects(aliased, written, is_view=not written and not schema.composite)
    if (schema.composite and schema.name not in _ALLOCATING) or undeclared:
        return Effects(inputs, written)
    return Effects((), written)


def _given(node: fx.Node, names: tuple[str, ...]) -> tuple[fx.Node, ...]:
    """The values passed for some of an operator's arguments."""
    nodes: list[fx.Node] = []
    for name in names:
        map_arg(schemas.given(node, name), nodes.append)
    return tuple(nodes)


def may_hold_tensors(node: fx.Node) -> bool:
    schema = schemas.schema_of(node.target)
    if schema is not None:
        return any(each.holds_tensors for each in schema.returns)
    if "val" not in node.meta:
        return True
    value = node.meta["val"]
    parts = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(part, (torch.Tensor, list, tuple)) for part in parts)


def switches_stream(node: fx.Node) -> bool:
    schema = schemas.schema_of(node.target)
    return schema is not None and (schema.namespace in _SWITCHING or schema.name in _SCOPES)


def asks_for_position(node: fx.Node) -> bool:
    """Whether the result of a call depends on the position of an argument in its storage.

    `as_strided` counts from the start of the storage. WHOLE_STORAGE_COPIES return a copy of the
    whole storage.
    """
    schema = schemas.schema_of(node.target)
    return schema is not None and (
        "as_strided" in schema.name or schema.name in WHOLE_STORAGE_COPIES
    )


def moves_values(graph: fx.Graph) -> bool:
    """Whether an operator (`t_`, `set_`) gives an existing value other sizes or other memory."""
    return any(torch.Tag.inplace_view in getattr(node.target, "tags", ()) for node in graph.nodes)
