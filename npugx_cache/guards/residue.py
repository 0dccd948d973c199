"""What of a guard tree C++ can't check in just the same sense, checked in Python at every call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npugx_cache.guards import shapes
from npugx_cache.guards.sources import evaluate, plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.guards.sources import Scope
    from npugx_cache.guards.tree import Check, GuardTree, Kind
    from npugx_cache.portable import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Conditions of a tree that are left to Python; nodes are the tree's."""

    checks: tuple[Check, ...]
    aliases: tuple[tuple[int, int], ...]
    different: tuple[tuple[int, ...], ...]
    shapes: tuple[Plain, ...]


class Residue:
    """Reads only the nodes that its conditions need."""

    def __init__(
        self, tree: GuardTree, left: Left, holds: Callable[[Kind, Any, Plain], bool]
    ) -> None:
        needed = tree.with_ancestors(_nodes(left))
        place = {node: position for position, node in enumerate(needed)}
        place[-1] = -1
        steps = plan(tree)
        self._plan = tuple((place[p], step, arg) for p, step, arg in (steps[n] for n in needed))
        self._checks = tuple((place[node], kind, arg) for node, kind, arg in left.checks)
        self._aliases = tuple((place[a], place[b]) for a, b in left.aliases)
        self._different = tuple(tuple(place[node] for node in group) for group in left.different)
        self._shapes = tuple(shapes.moved(condition, place) for condition in left.shapes)
        self._holds = holds

    def accept(self, scope: Scope) -> bool:
        """May raise anything that user code raises."""
        if not self._plan:
            return True
        values = evaluate(self._plan, scope)
        return (
            all(self._holds(kind, values[node], arg) for node, kind, arg in self._checks)
            and all(values[a] is values[b] for a, b in self._aliases)
            and all(len({id(values[n]) for n in group}) == len(group) for group in self._different)
            and all(shapes.holds(condition, values) for condition in self._shapes)
        )


def _nodes(left: Left) -> set[int]:
    found = {check.node for check in left.checks}
    found.update(*left.aliases, *left.different)
    return found.union(*map(shapes.nodes_in, left.shapes))
