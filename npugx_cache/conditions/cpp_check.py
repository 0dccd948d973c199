"""Fast path for calls after the first: a guard tree as torch's C++ guard managers.

The managers are built from live values that have just passed the full check in `check.py`. The full
check has the last word: what C++ accepts the full check would accept, and what C++ refuses is
checked in full again. Checks that C++ can't make with exactly the same meaning run in Python
(`Left`).
"""

from __future__ import annotations

import types
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.conditions import set_order, shapes
from npugx_cache.conditions.code_watch import SealedNames
from npugx_cache.conditions.cpp_paths import DICTS, REASON, SEQUENCES, LeftToPython, Managers
from npugx_cache.conditions.data import Check, GuardTree, Kind
from npugx_cache.conditions.evaluate import evaluate, plan
from npugx_cache.portable import decode, encode, encoded_keys, same
from npugx_cache.private import guard_managers, runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npugx_cache.conditions.evaluate import Scope
    from npugx_cache.portable import Plain

    Manager = Any
    Test = Callable[[Any, Plain], bool]

_SCALARS = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.layout)
_NESTED_FUNCTIONS = 3
_FUNCTION_PARTS = (
    "__module__",
    "__qualname__",
    "__code__",
    "__defaults__",
    "__kwdefaults__",
    "__closure__",
)


class NativeCheck:
    """One guard tree, bound to what was live when it was built. Keeps no tensor and no module.

    Raises `guard_managers.NotNow` where managers can't be built at the moment.
    """

    def __init__(
        self,
        tree: GuardTree,
        values: Sequence[Any],
        scope: Scope,
        test_of: Callable[[Kind], Test],
    ) -> None:
        with guard_managers.building() as manager_type:
            managers = Managers(tree, values, scope, manager_type)
            left = _Guards(tree, managers).add_all()
        self._managers, self._globals = managers.root, scope.frame_globals
        self._keep = managers.keep
        self._names = SealedNames(managers.shadows)
        self._residue = Residue(tree, left.revealed(values), test_of)
        self._state = runtime.SameState()

    def accept(self, scope: Scope) -> bool:
        """May raise anything that user code raises."""
        return (
            self._state.holds()
            and scope.frame_globals is self._globals
            and self._managers.check(scope.frame_locals)
            and self._names.unchanged()
            and self._residue.accept(scope)
        )


class _Guards:
    """Puts the checks of a tree on managers."""

    def __init__(self, tree: GuardTree, managers: Managers) -> None:
        self._tree, self._managers = tree, managers

    def add_all(self) -> Left:
        """Add every check that C++ can make; return those that are left to Python."""
        left = [check for check in self._tree.all_checks() if not self._add(check)]
        aliases = [pair for pair in self._tree.aliases if not self._same(*pair)]
        groups = (self._tree.distinct, self._tree.separate)
        different = [group for group in groups if group and not self._different(group)]
        return Left(
            checks=tuple(left),
            aliases=tuple(aliases),
            different=tuple(different),
            shapes=self._tree.shapes,
            orders=self._tree.orders,
        )

    def _add(self, check: Check) -> bool:
        add = _LEAVES.get(check.kind)
        if add is None:
            return False
        try:
            add(self, check.node, self._managers.values[check.node], check.arg)
        except LeftToPython:
            return False
        return True

    def _same(self, a: int, b: int) -> bool:
        try:
            pair = self._managers.of(a), self._managers.of(b)
        except LeftToPython:
            return False
        guard_managers.require_aliasing(*pair, REASON, None)
        return True

    def _different(self, group: tuple[int, ...]) -> bool:
        try:
            managers = [self._managers.of(node) for node in group]
        except LeftToPython:
            return False
        guard_managers.forbid_aliasing(managers, list(map(str, group)), REASON, None)
        return True

    # --- one kind of check each; `value` is the live value at the node

    def _type(self, node: int, _value: Any, _: Plain) -> None:
        self._managers.pin_type(node)

    def _identity(self, node: int, value: Any, _: Plain) -> None:
        manager = self._managers.of(node)
        if isinstance(value, types.FunctionType):
            if not _is_pinnable(value):
                raise LeftToPython("a function with mutable defaults or free variables")
            self._function(manager, value, str(node), set())
        elif _is_fixed(value):
            self._managers.guard_identity(manager, value)
        else:
            raise LeftToPython("identity")

    def _function(
        self, manager: Manager, function: types.FunctionType, source: str, seen: set[int]
    ) -> None:
        """Guard a function and all that its identity is made of, because both can be edited."""
        managers = self._managers
        managers.guard_identity(manager, function)
        if id(function) in seen:  # it is among what it carries itself; its parts are guarded there
            return
        seen.add(id(function))
        for name in _FUNCTION_PARTS:
            part, place = getattr(function, name), f"{source}.{name}"
            holder = managers.attribute(manager, name, part, place)
            managers.guard_identity(holder, part)
            for index, element in enumerate(part if type(part) is tuple else ()):
                child = managers.element(holder, index, element, f"{place}.{index}")
                self._carried(child, element, seen)

    def _carried(self, manager: Manager, value: Any, seen: set[int]) -> None:
        """Guard a default or a cell of a function, because its content can be replaced in place."""
        if isinstance(value, types.CellType):
            place = f"{manager.get_source()}.contents"
            content = value.cell_contents
            manager = self._managers.attribute(manager, "cell_contents", content, place)
            self._managers.guard_identity(manager, content)
            value = content
        if isinstance(value, types.FunctionType):
            self._function(manager, value, manager.get_source(), seen)

    def _equals(self, node: int, value: Any, _: Plain) -> None:
        if value is None or type(value) in (bool, torch.dtype, types.CodeType):
            self._managers.guard_identity(self._managers.of(node), value)
        elif type(value) in (str, int, torch.device) or _is_plain_float(value):
            self._managers.pin_type(node)
            self._managers.of(node).add_equals_match_guard(value, REASON, None)
        else:
            raise LeftToPython("equality")

    def _tensor(self, node: int, value: Any, arg: Any) -> None:
        fact, manager = self._tree.tensors[arg], self._managers.of(node)
        self._managers.pin_type(node)
        manager.add_tensor_match_guard(
            value,
            list(fact.size),
            list(fact.stride),
            str(node),
            REASON,
            None,
            type(value),
            runtime.dispatch_keys(value),
        )
        guard_managers.forbid_dimension_marks(manager, value, str(node), self._managers.kind)

    def _length(self, node: int, value: Any, length: Any) -> None:
        manager = self._managers.of(node)
        if type(value) in DICTS:
            manager.add_dict_length_check_guard(length, REASON, None)
        elif type(value) in SEQUENCES:
            self._managers.pin_type(node)
            manager.add_length_check_guard(length, REASON, None)
        else:
            raise LeftToPython("length")

    def _absent(self, node: int, _value: Any, name: Plain) -> None:
        self._managers.instance_dict(node).add_dict_contains_guard(False, name, REASON, None)

    def _has(self, node: int, value: Any, name: Any) -> None:
        # That the manager finds a value is the check.
        place = f"{node}.{name}"
        self._managers.attribute(self._managers.of(node), name, getattr(value, name), place)

    def _contains(self, node: int, value: Any, key: Plain) -> None:
        self._membership(node, value, key, expected=True)

    def _lacks(self, node: int, value: Any, key: Plain) -> None:
        self._membership(node, value, key, expected=False)

    def _membership(self, node: int, value: Any, key: Plain, *, expected: bool) -> None:
        if type(value) not in DICTS:
            raise LeftToPython("membership")
        self._managers.pin_type(node)
        self._managers.of(node).add_dict_contains_guard(expected, decode(key), REASON, None)

    def _keys(self, node: int, value: Any, arg: Any) -> None:
        if type(value) not in DICTS or arg[1]:
            raise LeftToPython("keys in order")
        self._managers.pin_type(node)
        self._managers.of(node).add_dict_length_check_guard(0, REASON, None)

    def _not_none(self, node: int, _value: Any, _: Plain) -> None:
        self._managers.of(node).add_not_none_guard(REASON, None)


_LEAVES: dict[Kind, Callable[[_Guards, int, Any, Plain], None]] = {
    Kind.TYPE: _Guards._type,  # noqa: SLF001
    Kind.IDENTITY: _Guards._identity,  # noqa: SLF001
    Kind.EQUALS: _Guards._equals,  # noqa: SLF001
    Kind.TENSOR: _Guards._tensor,  # noqa: SLF001
    Kind.LENGTH: _Guards._length,  # noqa: SLF001
    Kind.ABSENT_ATTR: _Guards._absent,  # noqa: SLF001
    Kind.HAS_ATTR: _Guards._has,  # noqa: SLF001
    Kind.CONTAINS: _Guards._contains,  # noqa: SLF001
    Kind.NOT_CONTAINS: _Guards._lacks,  # noqa: SLF001
    Kind.KEYS: _Guards._keys,  # noqa: SLF001
    Kind.KEY_SET: _Guards._keys,  # noqa: SLF001
    Kind.NOT_NONE: _Guards._not_none,  # noqa: SLF001
}
"""The other kinds are left to Python. LACKS_ATTR too: C++ takes any exception for an absence."""


def _is_plain_float(value: object) -> bool:
    """Whether `==` tells a float from every other: not so for 0.0, -0.0 and nan."""
    return type(value) is float and bool(value) and value == value  # noqa: PLR0124


def _is_fixed(value: object) -> bool:
    """Whether the portable name of an object can't change while the object lives."""
    if isinstance(value, types.BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, (types.ModuleType, type, str))
    if type(value) is tuple:
        return all(map(_is_fixed, value))
    return isinstance(value, (type, types.ModuleType)) or type(value) in _SCALARS


def _is_pinnable(value: object, above: tuple[object, ...] = ()) -> bool:
    """Whether a function's defaults and cells hold only fixed values and such functions."""
    if not isinstance(value, types.FunctionType):
        return _is_fixed(value)
    if any(value is each for each in above):  # a wrapper that calls itself by its name
        return True
    if len(above) > _NESTED_FUNCTIONS or value.__kwdefaults__:
        return False
    try:
        contents = [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:  # a cell that is not filled yet
        return False
    carried = (*(value.__defaults__ or ()), *contents)
    return all(_is_pinnable(each, (*above, value)) for each in carried)


# Checks that torch's C++ guard managers can't make with exactly our meaning.
#
# They run in Python on every call.


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
        sets = tuple(set_order.revealed(condition, values) for condition in self.orders)
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
        self._orders = tuple(set_order.moved(condition, place) for condition in left.orders)

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
            and all(set_order.holds(condition, values) for condition in self._orders)
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
    return found.union(*map(set_order.nodes_in, left.orders))
