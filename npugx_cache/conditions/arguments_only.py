"""The part of a guard tree that is about arguments: all that `guards="inputs_unsafe"` re-checks."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from itertools import chain
from typing import TYPE_CHECKING

import torch

from npugx_cache.conditions import shapes
from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.data import CALL, Check, Conditions, Kind, Step, columns
from npugx_cache.conditions.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npugx_cache.conditions.argument_facts import Pinned
    from npugx_cache.conditions.evaluate import Scope


class ArgumentsOnly:
    """Conditions on the arguments of a call, on global torch state, and on nothing else.

    A module among the arguments must be the same object as before. What is inside of a module,
    globals, closures of other functions, and code are not looked at again.
    """

    def __init__(self, tree: Conditions, scope: Scope) -> None:
        self._modules = {
            name: weakref.ref(value)
            for name, value in scope.frame_locals.items()
            if isinstance(value, torch.nn.Module)
        }
        self._checker = Checker(_below(tree, frozenset(scope.frame_locals) - self._modules.keys()))

    def pinned_facts(self) -> Pinned:
        return self._checker.pinned_facts()

    def holds(self, scope: Scope) -> bool:
        return self._same_modules(scope) and self._checker.holds(scope)

    def holds_quickly(self, scope: Scope) -> bool:
        return self._same_modules(scope) and self._checker.holds_quickly(scope)

    def let_go(self) -> None:
        self._checker.let_go()

    def _same_modules(self, scope: Scope) -> bool:
        found = scope.frame_locals
        return all(found.get(name) is module() for name, module in self._modules.items())


def _below(tree: Conditions, names: frozenset[str]) -> Conditions:
    """The part of a tree about these arguments. A condition on symbolic sizes stays whole."""
    inside: set[int] = set()
    for node, parent in enumerate(tree.parents):
        root = parent < 0 and tree.steps[node] == Step.LOCAL and tree.args[node] in names
        if root or parent in inside:
            inside.add(node)
    sizes = map(shapes.nodes_in, tree.arguments(Kind.SHAPE))
    kept = tree.with_ancestors(inside.union(*sizes))
    place = {node: position for position, node in enumerate(kept)} | {CALL: CALL}
    return dataclasses.replace(
        tree,
        parents=tuple(place[tree.parents[node]] for node in kept),
        steps=tuple(tree.steps[node] for node in kept),
        args=tuple(tree.args[node] for node in kept),
        checks=columns(
            chain.from_iterable(_renumber_check(check, place) for check in tree.all_checks())
        ),
    )


def _renumber_check(check: Check, place: Mapping[int, int]) -> Iterator[Check]:
    """The check for the nodes that are left, if it is about them alone."""
    node, kind, arg = check
    with contextlib.suppress(KeyError):
        if KINDS[kind].watch is None:
            yield Check(place[node], kind, KINDS[kind].moved(arg, place))
