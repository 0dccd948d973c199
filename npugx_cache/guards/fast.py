"""The conditions of a guard tree in a cheaper form, for calls after the first.

Built from live values that have just passed the full check in `check.py`, which stays the truth:
what is accepted here would be accepted there, and what is refused here is checked there again.
It is cheaper in three ways: tensors are compared in C++ in one call, constants and classes by `is`
or `==` with the live value, and the lengths of leaves (a module has ten empty hook dicts) without
making them nodes.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from npugx_cache._compat import runtime
from npugx_cache.guards import shapes
from npugx_cache.guards.sources import evaluate, plan
from npugx_cache.guards.tree import GuardTree, Kind, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npugx_cache.guards.sources import Scope
    from npugx_cache.portable import Plain

_EXACT = (str, int, bool, type(None))
_MARKS = frozenset(runtime.DIMENSION_MARKS)
_NAMED_ONCE = (type, types.ModuleType, types.BuiltinFunctionType)
"""Objects whose identity can't change while they live. Functions can be edited in place."""


class FastCheck:
    """One guard tree, bound to what was live when it was built. Holds no tensor and no module."""

    def __init__(
        self,
        tree: GuardTree,
        values: Sequence[Any],
        slow: Callable[[Kind, Any, Plain], bool],
    ) -> None:
        self._tree = tree
        self._slow = slow
        folded = _folded_leaves(tree)
        kept = [node for node in range(len(tree.parents)) if node not in folded]
        place = {node: position for position, node in enumerate(kept)}
        place[-1] = -1
        steps = plan(tree)
        self._plan = tuple((place[p], step, arg) for p, step, arg in (steps[n] for n in kept))
        self._lengths = tuple((place[tree.parents[n]], tree.args[n], folded[n]) for n in folded)
        self._place = place
        self._by_kind(values, folded)
        self._aliases = tuple((place[a], place[b]) for a, b in tree.aliases)
        self._shapes = tuple(_moved(condition, place) for condition in tree.shapes)
        self._tensors = _tensor_guards(tree, values)
        self._distinct = tuple(place[node] for node in tree.distinct)
        self._separate = tuple(place[node] for node in tree.separate)

    def _by_kind(self, values: Sequence[Any], folded: dict[int, int]) -> None:
        types_, same, equal, absent, rest = [], [], [], [], []
        for check in self._tree.all_checks():
            node, kind, arg = check
            if node in folded or kind is Kind.TENSOR:
                continue
            live, position = values[node], self._place[node]
            if kind is Kind.TYPE:
                types_.append((position, type(live)))
            elif kind is Kind.EQUALS and _compares_exactly(live):
                equal.append((position, type(live), live))
            elif kind is Kind.IDENTITY and isinstance(live, _NAMED_ONCE):
                same.append((position, live))
            elif kind is Kind.ABSENT_ATTR:
                absent.append((position, arg))
            else:
                rest.append((position, kind, arg))
        self._types, self._same, self._equal = tuple(types_), tuple(same), tuple(equal)
        self._absent, self._rest = tuple(absent), tuple(rest)

    def accept(self, scope: Scope) -> bool:
        """May raise anything that user code raises; global state is the caller's to compare."""
        values = evaluate(self._plan, scope)
        return (
            all(type(values[node]) is kind for node, kind in self._types)
            and all(values[node] is live for node, live in self._same)
            and all(type(values[n]) is kind and values[n] == live for n, kind, live in self._equal)
            and not any(name in values[node].__dict__ for node, name in self._absent)
            and all(len(getattr(values[node], name)) == n for node, name, n in self._lengths)
            and all(self._slow(kind, values[node], arg) for node, kind, arg in self._rest)
            and all(values[a] is values[b] for a, b in self._aliases)
            and len({id(values[node]) for node in self._separate}) == len(self._separate)
            and all(shapes.holds(condition, values) for condition in self._shapes)
            and self._tensors_match([values[node] for node in self._distinct])
        )

    def _tensors_match(self, live: list[Any]) -> bool:
        return not live or (self._tensors.check(*live) and all(map(_unmarked, live)))


def _unmarked(tensor: Any) -> bool:
    # A mark for dynamic dimensions is an attribute; the full check knows which are allowed.
    return not tensor.__dict__ or _MARKS.isdisjoint(tensor.__dict__)


def _compares_exactly(value: object) -> bool:
    """Whether `type` and `==` tell the value from every other: not so for 0.0, -0.0 and nan."""
    return type(value) in _EXACT or (type(value) is float and bool(value) and value == value)  # noqa: PLR0124


def _folded_leaves(tree: GuardTree) -> dict[int, int]:
    """Attributes of which only the length is checked: node -> length."""
    inner = {
        *tree.parents,
        *tree.distinct,
        *tree.separate,
        *(node for pair in tree.aliases for node in pair),
    }
    inner |= {node for condition in tree.shapes for node in _nodes_in(condition)}
    nodes, lengths = tree.checks.get(Kind.LENGTH, ((), ()))
    found = dict(zip(nodes, lengths, strict=True))
    for kind, (checked, _) in tree.checks.items():
        if kind is not Kind.LENGTH:
            inner.update(checked)
    return {n: size for n, size in found.items() if n not in inner and tree.steps[n] == Step.ATTR}


def _nodes_in(condition: Plain) -> list[int]:
    if condition[0] == "node":
        return [condition[1]]
    if condition[0] == "const":
        return []
    return [node for part in condition[1:] for node in _nodes_in(part)]


def _moved(condition: Plain, place: dict[int, int]) -> Plain:
    if condition[0] == "node":
        return ["node", place[condition[1]]]
    if condition[0] == "const":
        return condition
    return [condition[0], *(_moved(part, place) for part in condition[1:])]


def _tensor_guards(tree: GuardTree, values: Sequence[Any]) -> Any:
    """One comparison of all tensors: type, dispatch keys, dtype, device, grad, sizes, strides."""
    rows = dict(zip(*tree.checks.get(Kind.TENSOR, ((), ())), strict=True))
    facts = [tree.tensors[rows[node]] for node in tree.distinct]
    sizes: Any = [list(fact.size) for fact in facts]
    strides: Any = [list(fact.stride) for fact in facts]
    live = (values[node] for node in tree.distinct)
    return runtime.TensorGuards(*live, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
