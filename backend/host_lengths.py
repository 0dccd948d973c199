"""Finds the inputs of a graph that are lengths on the host (docs/glossary.md).

A captured graph can be replayed with other lengths; any other number belongs to the graph's key.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.node import map_arg

from npugx_cache.backend.capture.tasks import ARITHMETIC
from npugx_cache.backend.capture.updatable import BESIDE, UPDATABLE, key
from npugx_cache.private import schemas

if TYPE_CHECKING:
    from torch import fx

_ARITHMETIC = frozenset(getattr(operator, name) for name in ARITHMETIC)


def lengths_of(graph: fx.Graph) -> set[fx.Node]:
    """Inputs, and integers computed from them, that are used only by updatable parameters.

    The parameters are those of the operators in `capture.updatable`. A length is an integer, used
    directly or through arithmetic, or a tensor on the CPU. An input that anything else uses is no
    length: it becomes part of a captured graph's key.
    """
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if _may_change(node) and node.users and all(_takes(u, node, found) for u in node.users):
            found.add(node)
    return found


def _may_change(node: fx.Node) -> bool:
    value: Any = node.meta.get("val")
    if node.op == "placeholder":
        if isinstance(value, torch.Tensor):
            return value.device.type == "cpu"
        return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)
    return node.target in _ARITHMETIC and isinstance(value, (int, torch.SymInt))


def _takes(user: fx.Node, node: fx.Node, found: set[fx.Node]) -> bool:
    """Whether `user` uses the node only as a length, or to compute another length from it."""
    if user in found:
        return True
    schema = schemas.schema_of(user.target)
    if schema is None:
        return False
    namespace, _, name = schema.name.partition("::")
    known = key(namespace, name, schema.overload)
    names = UPDATABLE.get(known) or BESIDE.get(known)
    if names is None:
        return False
    fixed: list[fx.Node] = []
    for argument in schema.arguments:
        if argument.name not in names:
            map_arg(schemas.given(user, argument.name), fixed.append)
    return node not in fixed
