"""Checks that torch's C++ guard managers can't make with exactly our meaning.

They run in Python on every call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from npugx_cache.guards import orders, shapes
from npugx_cache.guards.sources import evaluate, plan
from npugx_cache.guards.tree import Check, Kind
from npugx_cache.portable import encode, encoded_keys, same

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npugx_cache.guards.sources import Scope
    from npugx_cache.guards.tree import GuardTree
    from npugx_cache.portable import Plain

    Test = Callable[[Any, Plain], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The conditions of a tree that are left to Python. Nodes are numbered as in the tree."""

    checks: tuple[Check, ...]
    aliases: tuple[tuple[int, int], ...]
    different: tuple[tuple[int, ...], ...]
    shapes: tuple[Plain, ...]
    orders: tuple[Plain, ...]

    def revealed(self, values: Sequence[Any]) -> Left:
        """The same conditions with live texts instead of digests, so that no call hashes a text.

        `values` have just passed these checks.
        """
        checks = tuple(_revealed(check, values[check.node]) for check in self.checks)
        sets = tuple(orders.revealed(condition, values) for condition in self.orders)
        return replace(self, checks=checks, orders=sets)


def _revealed(check: Check, value: Any) -> Check:
    live = _LIVE[check.kind](value) if check.kind in _LIVE else check.arg
    # Compared again: another thread may have changed a dict meanwhile.
    return check._replace(arg=live) if same(live, check.arg) else check


_LIVE: dict[Kind, Callable[[Any], Plain]] = {
    Kind.EQUALS: encode,
    Kind.KEYS: lambda value: encoded_keys(value, list),
    Kind.KEY_SET: lambda value: encoded_keys(value, set),
}


class Residue:
    """The checks that are left to Python, made ready. Reads only the nodes that they need."""

    def __init__(self, tree: GuardTree, left: Left, test_of: Callable[[Kind], Test]) -> None:
        needed = tree.with_ancestors(_nodes(left))
        place = {node: position for position, node in enumerate(needed)}
        place[-1] = -1
        steps = plan(tree)
        self._plan = tuple((place[p], step, arg) for p, step, arg in (steps[n] for n in needed))
        checks = _without_implied(left.checks)
        self._checks = tuple((place[node], test_of(kind), arg) for node, kind, arg in checks)
        self._aliases = tuple((place[a], place[b]) for a, b in left.aliases)
        self._different = tuple(tuple(place[node] for node in group) for group in left.different)
        self._related = bool(left.aliases or left.different or left.shapes or left.orders)
        self._shapes = tuple(shapes.moved(condition, place) for condition in left.shapes)
        self._orders = tuple(orders.moved(condition, place) for condition in left.orders)

    def accept(self, scope: Scope) -> bool:
        """May raise anything that user code raises."""
        if not self._plan and not self._orders:
            return True
        values = evaluate(self._plan, scope)
        for node, test, arg in self._checks:
            if not test(values[node], arg):
                return False
        return not self._related or self._relations_hold(values)

    def _relations_hold(self, values: list[Any]) -> bool:
        return (
            all(values[a] is values[b] for a, b in self._aliases)
            and all(len({id(values[n]) for n in group}) == len(group) for group in self._different)
            and all(shapes.holds(condition, values) for condition in self._shapes)
            and all(orders.holds(condition, values) for condition in self._orders)
        )


def _without_implied(checks: tuple[Check, ...]) -> list[Check]:
    """The checks without KEY_SET checks on nodes whose keys are checked in order as well."""
    ordered = {check.node: check.arg for check in checks if check.kind == Kind.KEYS}

    def implied(check: Check) -> bool:
        if check.kind != Kind.KEY_SET or check.node not in ordered:
            return False
        (_, keys), (_, inside) = ordered[check.node], check.arg
        return {*map(type, keys)} <= {str} and sorted(keys, key=repr) == inside

    return [check for check in checks if not implied(check)]


def _nodes(left: Left) -> set[int]:
    found = {check.node for check in left.checks}
    found.update(*left.aliases, *left.different)
    found = found.union(*map(shapes.nodes_in, left.shapes))
    return found.union(*map(orders.nodes_in, left.orders))
