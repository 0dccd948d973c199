"""Fast path for calls after the first: conditions as torch's C++ guard managers.

The managers are built from live values that have just passed the full check in `check.py`. The full
check has the last word: what C++ accepts the full check would accept, and what C++ refuses is
checked in full again. Checks that C++ can't make with exactly the same meaning run in Python
(`Residue`).
"""

from __future__ import annotations

import enum
from operator import is_
from typing import TYPE_CHECKING, Any

from npugx_cache.conditions.code_watch import SealedNames, Watch
from npugx_cache.conditions.cpp_paths import LeftToPython, Managers, PlainReads, is_fixed
from npugx_cache.conditions.data import CALL, Check, Conditions, Kind
from npugx_cache.conditions.evaluate import evaluate, part_of
from npugx_cache.conditions.kinds import KINDS, LiveArguments
from npugx_cache.private import guard_managers, runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npugx_cache.conditions.data import Rows
    from npugx_cache.conditions.dict_versions import Found
    from npugx_cache.conditions.evaluate import Prepared, Scope


class NativeCheck:
    """One guard tree, bound to what was live when it was built.

    It keeps no tensor and no module, except in dicts of a model that the function holds anyway.
    `steps` is the plan of the tree (`evaluate.py`). `found`, if given, says which conditions the
    versions of dicts stand for; it was made before the conditions were tested.
    Raises `guard_managers.NotNow` where managers can't be built at the moment.
    """

    def __init__(
        self,
        tree: Conditions,
        steps: Sequence[Prepared],
        values: Sequence[Any],
        scope: Scope,
        arguments: LiveArguments,
        found: Found | None = None,
    ) -> None:
        reads = PlainReads() if found is None else found.reads
        with guard_managers.building() as manager_type:
            managers = Managers(tree, values, scope, reads, manager_type)
            if found is not None and not managers.pin_objects(found.roots):
                found = None
            left = _add_all(tree.checks if found is None else found.left, managers)
        self._managers, self._globals = managers.root, scope.frame_globals
        self._keep, self._functions = managers.keep, managers.functions
        self._names, self._reads = SealedNames(reads.shadows), reads
        self._bodies = _watched_bodies(tree, values, arguments)
        apart = () if found is None else found.apart
        self._residue = Residue(
            tree, steps, left, values, arguments, apart, keeps_name=managers.keeps_name
        )
        self._state = runtime.SameState()
        self.versions = None if found is None else found.check

    def accept(self, scope: Scope) -> bool:
        """May raise anything that user code raises."""
        return (
            scope.frame_globals is self._globals
            # Before all others: where graphs take turns, most calls are refused by sizes alone.
            and self._managers.check(scope.frame_locals)
            and self._state.holds()
            and (self.versions is None or self.versions.hold())
            and self._names.is_unchanged()
            and self._reads.have_bases()
            and self._functions.is_unchanged()
            and (not self._bodies or all(body.is_unchanged() for body in self._bodies))
            and self._residue.accept(scope)
        )


def _watched_bodies(
    tree: Conditions, values: Sequence[Any], arguments: LiveArguments
) -> tuple[Watch, ...]:
    """Classes that were compared by their bodies: C++ compares only which class it is."""
    if not arguments.compare_bodies:
        return ()
    found: dict[int, Watch] = {}
    for node, kind, arg in tree.all_checks():
        if kind not in (Kind.TYPE, Kind.IDENTITY, Kind.TENSOR):
            continue
        cls = values[node] if kind is Kind.IDENTITY else type(values[node])
        watch = arguments.watch_of(tree.tensors[arg].type if kind is Kind.TENSOR else arg, cls)
        if watch is not None:
            found[id(cls)] = watch
    return tuple(found.values())


def _add_all(checks: Mapping[Kind, Rows], managers: Managers) -> list[Check]:
    """Put the checks on the managers; returns those that are left to Python."""
    left, values = [], managers.values
    for kind, (nodes, args) in checks.items():
        native = KINDS[kind].native
        for node, arg in zip(nodes, args, strict=True):
            try:
                native(managers, node, None if node == CALL else values[node], arg)
            except LeftToPython:
                left.append(Check(node, kind, arg))
    return left


class Residue:
    """The checks that are left to Python, made ready. Reads only the nodes that they need.

    `values` have just passed the checks: live texts take the place of digests, so that no call
    hashes a text. `apart` are nodes, and the ids of objects that none of their values may be.
    `keeps_name` is that of the managers (`cpp_paths.py`), which watch functions for it.
    """

    def __init__(
        self,
        tree: Conditions,
        steps: Sequence[Prepared],
        left: Sequence[Check],
        values: Sequence[Any],
        arguments: LiveArguments,
        apart: Sequence[tuple[list[int], frozenset[int]]] = (),
        *,
        keeps_name: Callable[[object], bool],
    ) -> None:
        named = (KINDS[check.kind].nodes(check.arg) for check in left)
        alone = (nodes for nodes, _ in apart)
        needed = {check.node for check in left}.union(*named, *alone)
        self._plan, place = part_of(tree, steps, needed)
        on_values, on_call = [], []
        for node, kind, arg in _without_implied(left):
            row = KINDS[kind]
            if kind is Kind.IDENTITY and keeps_name(values[node]):
                on_values.append((place[node], is_, values[node]))
                continue
            if kind is Kind.IDENTITY and (parts := _parts_of_member(values[node])) is not None:
                on_values.append((place[node], _is_member, parts))
                continue
            live = row.revealed(values if node == CALL else values[node], arg)
            (made,) = arguments.of(kind, [row.moved(live, place)])
            if node == CALL:
                on_call.append((row.test, made))
            else:
                on_values.append((place[node], row.test, made))
        for nodes, ids in apart:
            on_call.append((_are_apart, ([place[node] for node in nodes], ids)))
        self._on_values, self._on_call = tuple(on_values), tuple(on_call)

    def accept(self, scope: Scope) -> bool:
        """May raise anything that user code raises."""
        values = evaluate(self._plan, scope) if self._plan else []
        for node, test, arg in self._on_values:
            if not test(values[node], arg):
                return False
        for test, arg in self._on_call:  # noqa: SIM110 - a generator costs a call at every call
            if not test(values, arg):
                return False
        return True


def _parts_of_member(value: Any) -> tuple[object, ...] | None:
    """A member of an enumeration, and what its portable name is made of if that is fixed."""
    if not isinstance(value, enum.Enum) or not is_fixed(type(value)):
        return None
    return (value, value._name_, value._value_) if is_fixed(value._value_) else None


def _is_member(value: Any, parts: Any) -> bool:
    member, name, carried = parts
    return value is member and value._name_ is name and value._value_ is carried


def _are_apart(values: Sequence[Any], arg: tuple[list[int], frozenset[int]]) -> bool:
    nodes, ids = arg
    return ids.isdisjoint([id(values[node]) for node in nodes])


def _without_implied(checks: Sequence[Check]) -> list[Check]:
    """The checks without KEY_SET checks on nodes whose keys are checked in order as well."""
    ordered = {check.node: check.arg for check in checks if check.kind == Kind.KEYS}

    def is_implied(check: Check) -> bool:
        if check.kind != Kind.KEY_SET or check.node not in ordered:
            return False
        (_, keys), (_, inside) = ordered[check.node], check.arg
        return {*map(type, keys)} <= {str} and sorted(keys, key=repr) == inside

    return [check for check in checks if not is_implied(check)]
