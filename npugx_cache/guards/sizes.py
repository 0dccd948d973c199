"""Tells whether a guard tree refuses a call for nothing but the sizes of tensors and ints.

Such an entry hands on what it knows of sizes, so that the next trace makes the size symbolic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npugx_cache.guards.check import Guards, live_state
from npugx_cache.guards.sources import Unreachable, evaluate, plan
from npugx_cache.guards.tree import Check, GuardTree, Kind

if TYPE_CHECKING:
    from npugx_cache.guards.sources import Scope


def only_sizes_differ(guards: Guards, scope: Scope) -> bool:
    """Whether every condition holds, but for conditions on sizes.

    The shape of a parameter does not count as a size: that is another model.
    """
    tree = guards.tree
    if live_state() != tree.state:
        return False
    try:
        values = evaluate(plan(tree), scope)
    except Unreachable:
        return False
    return all(
        guards.holds(check, values[check.node]) or _is_size(tree, check, values[check.node])
        for check in tree.all_checks()
    ) and all(values[a] is values[b] for a, b in tree.aliases)


def _is_size(tree: GuardTree, check: Check, value: object) -> bool:
    if check.kind is Kind.EQUALS:
        return type(value) is int and type(check.arg) is int
    if check.kind is not Kind.TENSOR or type(value) is not torch.Tensor:
        return False
    fact = tree.tensors[check.arg]
    return (
        str(value.dtype) == f"torch.{fact.dtype}"
        and str(value.device) == fact.device
        and value.requires_grad == fact.requires_grad
        and value.dim() == len(fact.size)
    )
