"""Checks conditions against live objects and loaded code, in Python.

This check decides whether a stored graph may run (P1). Faster checks only repeat its answer.
"""

from __future__ import annotations

import itertools
import types
from typing import TYPE_CHECKING, Any

from npugx_cache.conditions.code_watch import Watch
from npugx_cache.conditions.cpp_check import NativeCheck
from npugx_cache.conditions.data import CALL, Check, Conditions, Kind, Step
from npugx_cache.conditions.evaluate import MISSING, Scope, evaluate, evaluate_all, part_of, plan
from npugx_cache.conditions.kinds import KINDS, LiveArguments, in_order, is_imported
from npugx_cache.events import logger
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.portable import NotPortable

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from npugx_cache.conditions.argument_facts import Pinned
    from npugx_cache.conditions.causes import Failed
    from npugx_cache.conditions.dict_versions import Found
    from npugx_cache.conditions.explain import Wording
    from npugx_cache.conditions.kinds import Row

    Group = tuple[Row, Sequence[tuple[int, Any]]]

_MANY = 256
"""Nodes of a tree. In smaller ones versions of dicts take longer to compare than the values."""

_TRIES, _LOOKS = 2, 8
"""How often checks of versions are made, and how often what they would stand for is looked for.

A look is in vain if the conditions don't hold.
"""

_MOST_WORDED = 64  # after `.to()`, one condition of each tensor of a model fails


class Checker:
    """The conditions of one graph, made ready for repeated checks. Safe in several threads.

    `holds` decides. The first check that holds belongs to a lookup, which has one call to serve.
    From the second on, checks get cheap: a watch over the code takes the place of hashing the code,
    and `holds_quickly` asks torch's C++ managers.
    """

    def __init__(self, conditions: Conditions) -> None:
        self.conditions = conditions
        self._plan = plan(conditions)
        self._arguments = LiveArguments(conditions)
        self._before: dict[Kind, Group] = {}
        self._of_call: dict[Kind, Group] = {}
        self._code: dict[Kind, Group] = {}
        for kind, (nodes, args) in conditions.checks.items():
            row = KINDS[kind]
            groups = self._before if row.before else self._of_call
            groups = groups if row.watch is None else self._code
            groups[kind] = row, tuple(zip(nodes, self._arguments.of(kind, args), strict=True))
        self._watch: Watch | None = None
        self._native: NativeCheck | None = None
        self._held = self._looked = self._of_versions = 0

    def pinned_facts(self) -> Pinned:
        """What the conditions demand of arguments exactly: `argument_facts.Index`."""
        from npugx_cache.conditions import argument_facts  # the only graph of a function needs none

        return argument_facts.pinned_facts(self.conditions)

    def holds(self, scope: Scope) -> bool:
        """Whether every condition holds. Never raises: what can't be evaluated does not hold."""
        try:
            watch = self._watch
            watched = watch is not None and watch.is_unchanged()
            if watch is not None and not watched:
                return False
            if not _hold(self._before.values(), []):
                return False
            values = evaluate(self._plan, scope)
            # Not at the first call: a restart waits for it. At the 2nd, 4th, 8th, ... time: where
            # objects change at every call the C++ check is made in vain, so ever more rarely.
            due = self._held > 0 and (self._held + 1).bit_count() == 1
            found = self._find_versions(values, scope.owner) if due else None
            if not _hold(self._of_call.values(), values):
                return False
            if watch is None and self._held:
                # Before the code is checked: what is patched meanwhile is seen at the next call.
                code = self._code.values()
                watch = Watch((row.watch, fact) for row, facts in code for _, fact in facts)
            if not (watched or self.code_holds()):
                return False
        except Exception as error:  # noqa: BLE001 - user code (properties, __eq__) raises anything
            let_through(error)
            return False
        self._watch = watch or self._watch
        self._held += 1
        if due:
            self._learn(values, scope, found)
        return True

    def holds_quickly(self, scope: Scope) -> bool:
        """Fast path: whether C++ accepts. False says nothing: then ask `holds`."""
        native, watch = self._native, self._watch
        try:
            return (
                native is not None
                and native.accept(scope)
                and (not self._code or (watch is not None and watch.is_unchanged()))
            )
        except Exception:  # noqa: BLE001 - the full check says what it means
            return False

    def let_go(self) -> None:
        """Keep nothing of a model until the next check."""
        native = self._native
        if native is not None and native.versions is not None:
            native.versions.let_go()

    def code_holds(self) -> bool:
        """Whether the code that was traced is still what it was, whatever the call is."""
        try:
            return _hold(self._code.values(), [])
        except NotPortable:  # what a fact is about is gone
            return False

    def is_of_another_rank(self, scope: Scope) -> bool:
        """Whether the rank of this process is the one condition that fails. Never raises."""
        asked = zip(self.conditions.steps, self.conditions.args, strict=True)
        ranks = {node for node, each in enumerate(asked) if each == (Step.ANSWER, "get_rank")}
        values = evaluate_all(self._plan, scope) if ranks else [MISSING]
        return not any(value is MISSING for value in values) and all(
            check.node in ranks
            or self.holds_of(check, values if check.node == CALL else values[check.node])
            for check in self.conditions.all_checks()
        )

    def missing_import(self, scope: Scope) -> str | None:
        """The next module that the function imports itself, if all else that can be asked holds.

        One at a time and in the function's order: what a module says may decide whether the next
        import is made, and a module may change the one before. Never raises.
        """
        imports = self.conditions.arguments(Kind.IMPORT)
        name = next((each for each in imports if not is_imported(each)), None)
        if name is None:
            return None
        values = evaluate_all(self._plan, scope)
        for node, value in enumerate(values):
            if value is MISSING and not self._is_in_module(node, values):
                return None
        for check in self.conditions.all_checks():
            row = KINDS[check.kind]
            about = (check.node,) if check.node != CALL else row.nodes(check.arg)
            is_of_absent = row.watch is not None and not is_imported(check.arg[0])
            if check.kind is Kind.IMPORT or is_of_absent:
                continue
            if any(values[node] is MISSING for node in about):
                continue
            if not self.holds_of(check, values if check.node == CALL else values[check.node]):
                return None
        return str(name)

    def _is_in_module(self, node: int, values: list[Any]) -> bool:
        """Whether a place does not exist because a module is not imported yet."""
        node = self._first_missing(values, node)
        parent, step, name = self._plan[node]
        if step in (Step.MODULE, Step.NAMESPACE):
            return not is_imported(name)
        if step == Step.FUNCTION_GLOBALS:
            return not is_imported(name.partition(":")[0])
        if step != Step.ATTR or parent < 0:
            return False
        home: Any = getattr(values[parent], "__name__", None)
        within = isinstance(values[parent], types.ModuleType)
        imports = self.conditions.arguments(Kind.IMPORT)
        # A module that another thread is importing, or a module inside of a package.
        return within and (not is_imported(home) or f"{home}.{name}" in imports)

    def value(self, node: int, scope: Scope) -> Any:
        """The live object at a place of the tree. Call it after `holds`; raises anything."""
        return evaluate(self._plan, scope)[node]

    def _find_versions(self, values: list[Any], owner: object) -> Found | None:
        """What versions of dicts can stand for, before the conditions are tested."""
        # Where modules write to their dicts, or other modules come in turn, versions never last.
        if self._of_versions >= _TRIES or self._looked >= _LOOKS or len(self._plan) < _MANY:
            return None
        self._looked += 1
        from npugx_cache.conditions.dict_versions import Found  # a first call needs none

        try:
            found = Found(self.conditions, self._plan, values, owner)
        except Exception as reason:  # noqa: BLE001 - all conditions are checked without it
            logger.debug("versions of dicts take no condition's place: %r", reason)
            return None
        return found if found.roots else None

    def _learn(self, values: list[Any], scope: Scope, found: Found | None) -> None:
        """Build the check of later calls."""
        self._of_versions += found is not None
        try:
            native = NativeCheck(self.conditions, self._plan, values, scope, self._arguments, found)
            # Once more, because guards are built from live objects: they would take for right from
            # now on what another thread has edited since the conditions were tested.
            if self._hold_still(scope, found):
                self._native = native
        except Exception as reason:  # noqa: BLE001 - the full check works without it
            logger.debug("guards stay in Python for now: %r", reason)

    def _hold_still(self, scope: Scope, found: Found | None) -> bool:
        """Whether conditions on single values hold, without those that versions stand for."""
        left = self.conditions.checks if found is None else found.left
        nodes = {kind: {*left[kind][0]} - {CALL} for kind in self._of_call}
        steps, place = part_of(self.conditions, self._plan, set().union(*nodes.values()))
        groups: list[Group] = []
        for kind, (row, checks) in self._of_call.items():
            asked = nodes[kind]
            groups.append((row, [(place[node], arg) for node, arg in checks if node in asked]))
        return _hold(groups, evaluate(steps, scope))

    def failures(
        self, scope: Scope, limit: int = 8, known: Callable[[], Container[object]] = frozenset
    ) -> list[str]:
        """Why the conditions don't hold, in words; an empty list when they do.

        `known` gives the texts that may be shown as they are.
        """
        return self.refusal(scope, limit, known)[1]

    def refusal(
        self, scope: Scope, limit: int = 8, known: Callable[[], Container[object]] = frozenset
    ) -> tuple[str, list[str]]:
        """As `failures`, with what the first of them is about (`causes.kind_of`)."""
        failed = self._list_failures(scope, known)
        from npugx_cache.conditions import causes, paths  # a first hit has no reasons to word

        worded = list(itertools.islice(failed, 1 if limit == 1 else _MOST_WORDED))
        texts = [each.text for each in worded] if limit == 1 else causes.reasons(worded)
        return causes.kind_of(worded), [paths.as_written(text) for text in _take(texts, limit)]

    def _list_failures(
        self, scope: Scope, known: Callable[[], Container[object]]
    ) -> Iterator[Failed]:
        from npugx_cache.conditions.causes import Failed
        from npugx_cache.conditions.explain import Wording

        words = Wording(self.conditions, known)
        values = evaluate_all(self._plan, scope)
        missing = {self._first_missing(values, n) for n, v in enumerate(values) if v is MISSING}
        for path in map(words.path, sorted(missing)):
            yield Failed(None, path, f"{path} does not exist")
        for check in in_order(self.conditions):
            row = KINDS[check.kind]
            about = (check.node,) if check.node != CALL else row.nodes(check.arg)
            if any(values[node] is MISSING for node in about):
                continue
            value = values if check.node == CALL else values[check.node]
            if not self.holds_of(check, value):
                path = words.path(check.node)
                for text in _texts_of(row, words, path, check.arg, value):
                    yield Failed(check.kind, path, text)

    def holds_of(self, check: Check, value: Any) -> bool:
        """Whether one condition holds of the value at its node. Never raises."""
        try:
            (arg,) = self._arguments.of(check.kind, [check.arg])
            return bool(KINDS[check.kind].test(value, arg))
        except Exception:  # noqa: BLE001 - as in holds()
            return False

    def _first_missing(self, values: list[Any], node: int) -> int:
        parents = self.conditions.parents
        while parents[node] >= 0 and values[parents[node]] is MISSING:
            node = parents[node]
        return node


def _texts_of(row: Row, words: Wording, path: str, arg: Any, value: Any) -> list[str]:
    """Why a condition does not hold of a value, in words."""
    if row.reason is not None:
        try:
            made = row.reason(words, path, arg, value)
            return [made] if isinstance(made, str) else list(made)
        except Exception as error:  # noqa: BLE001 - it asks an object of the user's
            let_through(error)
            # Such as a parameter without a shape, because its module has not been called yet.
            logger.debug("%s can't be described: %r", path, error)
    return [f"no longer true: {row.python(words, path, arg)}"]


def _hold(groups: Iterable[Group], values: list[Any]) -> bool:
    for row, checks in groups:
        if row.bulk is not None:
            if not row.bulk(checks, values):
                return False
            continue
        test = row.test
        for node, arg in checks:
            if not test(values if node == CALL else values[node], arg):
                return False
    return True


def _take(items: Iterable[str], limit: int) -> Iterator[str]:
    for position, item in enumerate(items):
        if position == limit:
            yield "and more"
            return
        yield item
