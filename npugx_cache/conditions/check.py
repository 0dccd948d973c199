"""Checks a guard tree against live objects, in Python.

This check decides whether a stored graph may run (P1). Faster checks only repeat its answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.conditions.cpp_check import NativeCheck
from npugx_cache.conditions.data import CALL, Check, GuardTree
from npugx_cache.conditions.evaluate import MISSING, Scope, evaluate, evaluate_all, plan
from npugx_cache.conditions.explain import Wording
from npugx_cache.conditions.kinds import KINDS, LiveArguments, in_order
from npugx_cache.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from npugx_cache.conditions.kinds import Row

    Group = tuple[Row, Sequence[tuple[int, Any]]]


class Guards:
    """A guard tree made ready for repeated checks. Safe to use from several threads."""

    def __init__(self, tree: GuardTree) -> None:
        self.tree = tree
        self._plan = plan(tree)
        self._arguments = LiveArguments(tree)
        self._before: list[Group] = []
        self._on_values: list[Group] = []
        self._on_call: list[Group] = []
        for kind, (nodes, args) in tree.checks.items():
            row = KINDS[kind]
            place = self._on_call if CALL in nodes else self._on_values
            place = self._before if row.before else place
            place.append((row, tuple(zip(nodes, self._arguments.of(kind, args), strict=True))))
        self._native: NativeCheck | None = None
        self._accepted = 0

    def accept(self, scope: Scope) -> bool:
        """Whether every condition holds. Never raises: what can't be evaluated does not hold."""
        if self.accept_quickly(scope):
            return True
        try:
            if not _hold_of(None, self._before):
                return False
            values = evaluate(self._plan, scope)
            accepted = self._checks_hold(values) and _hold_of(values, self._on_call)
        except Exception as error:  # noqa: BLE001 - user code (properties, __eq__) raises anything
            from npugx_cache.interruptions import let_through

            let_through(error)
            return False
        if accepted:
            self._learn(values, scope)
        return accepted

    def accept_quickly(self, scope: Scope) -> bool:
        """Fast path: whether the C++ check accepts. False says nothing: then ask `accept`."""
        try:
            native = self._native
            return native is not None and native.accept(scope)
        except Exception:  # noqa: BLE001 - the full check says what it means
            return False

    def _learn(self, values: list[Any], scope: Scope) -> None:
        """Build the C++ check for later calls. Not at the first call: a restart waits for it."""
        self._accepted += 1
        # The 2nd, 4th, 8th, ... time: where objects change at every call the C++ check is built in
        # vain, so it is built ever more rarely.
        if self._accepted > 1 and self._accepted.bit_count() == 1:
            try:
                self._native = NativeCheck(self.tree, values, scope, self._arguments)
            except Exception as reason:  # noqa: BLE001 - the full check works without it
                logger.debug("guards stay in Python for now: %r", reason)

    def failures(
        self, scope: Scope, limit: int = 8, known: Callable[[], Container[object]] = frozenset
    ) -> list[str]:
        """Why the conditions don't hold, in words; an empty list when they do.

        `known` gives the texts that may be shown as they are.
        """
        return list(_take(self._failures(scope, known), limit))

    def _checks_hold(self, values: list[Any]) -> bool:
        for row, checks in self._on_values:
            if row.bulk is not None:
                if not row.bulk(checks, values):
                    return False
                continue
            test = row.test
            for node, arg in checks:
                if not test(values[node], arg):
                    return False
        return True

    def _failures(self, scope: Scope, known: Callable[[], Container[object]]) -> Iterator[str]:
        words = Wording(self.tree, known)
        values = evaluate_all(self._plan, scope)
        missing = {self._first_missing(values, n) for n, v in enumerate(values) if v is MISSING}
        yield from (f"{words.path(node)} does not exist" for node in sorted(missing))
        for check in in_order(self.tree):
            row = KINDS[check.kind]
            about = (check.node,) if check.node != CALL else row.nodes(check.arg)
            if any(values[node] is MISSING for node in about):
                continue
            value = values if check.node == CALL else values[check.node]
            if not self.holds(check, value):
                path = words.path(check.node)
                if row.reasons is None:
                    yield f"no longer true: {row.python(words, path, check.arg)}"
                else:
                    yield from row.reasons(words, path, check.arg, value)

    def holds(self, check: Check, value: Any) -> bool:
        """Whether one condition holds of the value at its node. Never raises."""
        try:
            (arg,) = self._arguments.of(check.kind, [check.arg])
            return bool(KINDS[check.kind].test(value, arg))
        except Exception:  # noqa: BLE001 - as in accept()
            return False

    def _first_missing(self, values: list[Any], node: int) -> int:
        parents = self.tree.parents
        while parents[node] >= 0 and values[parents[node]] is MISSING:
            node = parents[node]
        return node


def _hold_of(values: list[Any] | None, groups: list[Group]) -> bool:
    """Whether conditions on the call as a whole hold."""
    return all(row.test(values, arg) for row, checks in groups for _, arg in checks)


def _take(items: Iterator[str], limit: int) -> Iterator[str]:
    for position, item in enumerate(items):
        if position == limit:
            yield "and more"
            return
        yield item
