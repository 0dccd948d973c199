"""The part of a guard tree that is about arguments: all that `guards="inputs_unsafe"` re-checks."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.conditions import set_order, shapes
from npugx_cache.conditions.check import Guards
from npugx_cache.conditions.data import GuardTree, Kind, Step

if TYPE_CHECKING:
    from npugx_cache.conditions.evaluate import Scope


class InputGuards:
    """Conditions on the arguments of a call, on global torch state, and on nothing else.

    A module among the arguments must be the same object as before. What is inside of a module,
    globals, closures of other functions, and code are not looked at again.
    """

    def __init__(self, tree: GuardTree, scope: Scope) -> None:
        self._modules = {
            name: weakref.ref(value)
            for name, value in scope.frame_locals.items()
            if isinstance(value, torch.nn.Module)
        }
        self._guards = Guards(_below(tree, frozenset(scope.frame_locals) - self._modules.keys()))

    def accept(self, scope: Scope) -> bool:
        return self._same_modules(scope) and self._guards.accept(scope)

    def accept_quickly(self, scope: Scope) -> bool:
        return self._same_modules(scope) and self._guards.accept_quickly(scope)

    def _same_modules(self, scope: Scope) -> bool:
        found = scope.frame_locals
        return all(found.get(name) is module() for name, module in self._modules.items())


def _below(tree: GuardTree, names: frozenset[str]) -> GuardTree:
    """The part of a tree about these arguments. A condition on symbolic sizes stays whole."""
    inside: set[int] = set()
    for node, parent in enumerate(tree.parents):
        root = parent < 0 and tree.steps[node] == Step.LOCAL and tree.args[node] in names
        if root or parent in inside:
            inside.add(node)
    kept = tree.with_ancestors(inside.union(*map(shapes.nodes_in, tree.shapes)))
    place = {node: position for position, node in enumerate(kept)} | {-1: -1}
    rows: dict[Kind, list[tuple[int, Any]]] = {
        kind: [(place[node], arg) for node, arg in zip(*row, strict=True) if node in place]
        for kind, row in tree.checks.items()
    }
    return dataclasses.replace(
        tree,
        parents=tuple(place[tree.parents[node]] for node in kept),
        steps=tuple(tree.steps[node] for node in kept),
        args=tuple(tree.args[node] for node in kept),
        checks={
            kind: (tuple(node for node, _ in row), tuple(arg for _, arg in row))
            for kind, row in rows.items()
        },
        aliases=tuple((place[a], place[b]) for a, b in tree.aliases if a in place and b in place),
        distinct=tuple(place[node] for node in tree.distinct if node in place),
        separate=tuple(place[node] for node in tree.separate if node in place),
        shapes=tuple(shapes.moved(condition, place) for condition in tree.shapes),
        orders=tuple(
            set_order.moved(condition, place)
            for condition in tree.orders
            if set_order.nodes_in(condition) <= place.keys()
        ),
    )
