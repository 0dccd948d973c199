"""Checks a guard tree against live objects, in Python.

This check decides whether a stored graph may run (P1). Faster checks only repeat its answer.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npugx_cache.conditions import set_order, shapes
from npugx_cache.conditions.cpp_check import NativeCheck
from npugx_cache.conditions.data import Check, GuardTree, Kind, TensorFact
from npugx_cache.conditions.evaluate import MISSING, Scope, evaluate, evaluate_all, plan
from npugx_cache.conditions.explain import Wording
from npugx_cache.events import logger
from npugx_cache.portable import (
    NotPortable,
    decode,
    devices,
    encode,
    encoded_keys,
    identity,
    ordered_keys,
    same,
)
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping

    from npugx_cache.conditions.cpp_check import Test
    from npugx_cache.portable import Plain

Rows = tuple[tuple[int, Any], ...]

THREADS = "num_threads"


def live_state() -> dict[str, object]:
    """`runtime.global_state` without the number of threads, which is guarded on its own."""
    state = runtime.global_state()
    state.pop(THREADS, None)
    return state


class Guards:
    """A guard tree made ready for repeated checks. Safe to use from several threads.

    It remembers which live class has which recorded identity. Such a class was compared in full
    once, and is compared by `is` afterwards.
    """

    def __init__(self, tree: GuardTree) -> None:
        self.tree = tree
        self._place, self._anywhere = Place(tree), tree.device is None
        self._plan = plan(tree)
        self._known: list[object] = [MISSING] * len(tree.idents)
        self._tensors = tuple(starmap(LiveTensorFact.of, tree.tensors))
        self._groups = tuple(
            (kind, tuple(zip(*rows, strict=True))) for kind, rows in tree.checks.items()
        )
        self._native: NativeCheck | None = None
        self._accepted = 0

    def accept(self, scope: Scope) -> bool:
        """Whether every condition holds. Never raises: what can't be evaluated does not hold."""
        if self.accept_quickly(scope):
            return True
        if live_state() != self.tree.state or not self._place.holds():
            return False
        try:
            values = evaluate(self._plan, scope)
            accepted = self._checks_hold(values) and self._relations_hold(values)
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
            native, here = self._native, self._anywhere or self._place.device_is_current()
            return native is not None and here and native.accept(scope)
        except Exception:  # noqa: BLE001 - the full check says what it means
            return False

    def _learn(self, values: list[Any], scope: Scope) -> None:
        """Build the C++ check for later calls. Not at the first call: a restart waits for it."""
        self._accepted += 1
        # The 2nd, 4th, 8th, ... time: where objects change at every call the C++ check is built in
        # vain, so it is built ever more rarely.
        if self._accepted > 1 and self._accepted.bit_count() == 1:
            try:
                self._native = NativeCheck(self.tree, values, scope, self._test_of)
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
        for kind, rows in self._groups:
            fast = _FAST.get(kind)
            if fast is not None:
                if not fast(self, rows, values):
                    return False
                continue
            test = self._test_of(kind)
            for node, arg in rows:
                if not test(values[node], arg):
                    return False
        return True

    def _types_match(self, rows: Rows, values: list[Any]) -> bool:
        known = self._known
        for node, arg in rows:
            live = type(values[node])
            if live is not known[arg] and not self._is(live, arg):
                return False
        return True

    def _attributes_absent(self, rows: Rows, values: list[Any]) -> bool:
        return not any(name in values[node].__dict__ for node, name in rows)

    def _lengths_match(self, rows: Rows, values: list[Any]) -> bool:
        return all(len(values[node]) == length for node, length in rows)

    def _relations_hold(self, values: list[Any]) -> bool:
        tree = self.tree
        if not all(values[a] is values[b] for a, b in tree.aliases):
            return False
        for group in (tree.distinct, tree.separate):
            if len({id(values[node]) for node in group}) != len(group):
                return False
        return all(shapes.holds(condition, values) for condition in tree.shapes) and all(
            set_order.holds(condition, values) for condition in tree.orders
        )

    def _is(self, live: object, ident: int) -> bool:
        """Whether a live object has a recorded identity."""
        if live is self._known[ident]:
            return True
        try:
            same = bool(identity(live) == self.tree.idents[ident])
        except NotPortable:
            return False
        # A function can be edited in place (__code__, __defaults__): never remembered as equal.
        if same and isinstance(live, type):
            self._known[ident] = live
        return same

    def _type_is(self, value: Any, ident: Any) -> bool:
        return self._is(type(value), ident)

    def _tensor_matches(self, value: Any, index: int) -> bool:
        fact = self._tensors[index]
        live = type(value)
        return (
            isinstance(value, torch.Tensor)
            and (live is self._known[fact.type] or self._is(live, fact.type))
            and value.dtype is fact.dtype
            and value.device == fact.device
            and value.requires_grad is fact.requires_grad
            and fact.layout_matches(value)
            and runtime.dispatch_keys(value).raw_repr() == fact.dispatch_keys
            and fact.marks_match(value)
        )

    def _holds(self, kind: Kind, value: Any, arg: Plain) -> bool:
        return self._test_of(kind)(value, arg)

    def _test_of(self, kind: Kind) -> Test:
        """The function that tells whether a value passes a check of this kind."""
        return _SIMPLE.get(kind) or _WITH_MEMO[kind].__get__(self)

    def _failures(self, scope: Scope, known: Callable[[], Container[object]]) -> Iterator[str]:
        words = Wording(self.tree, known)
        yield from _state_failures(self.tree.state, live_state())
        yield from self._place.failures()
        values = evaluate_all(self._plan, scope)
        reported: set[int] = set()
        for check in self.tree.all_checks():
            if values[check.node] is MISSING:
                missing = self._first_missing(values, check.node)
                if missing not in reported:
                    reported.add(missing)
                    yield f"{words.path(missing)} does not exist"
            elif not self.holds(check, values[check.node]):
                yield words.failure(check, values[check.node])
        for node in [node for node, value in enumerate(values) if value is MISSING]:
            missing = self._first_missing(values, node)
            if missing not in reported:
                reported.add(missing)
                yield f"{words.path(missing)} does not exist"
        yield from self._relation_failures(values, words)

    def holds(self, check: Check, value: Any) -> bool:
        """Whether one condition holds of the value at its node. Never raises."""
        try:
            return self._holds(check.kind, value, check.arg)
        except Exception:  # noqa: BLE001 - as in accept()
            return False

    def _first_missing(self, values: list[Any], node: int) -> int:
        parents = self.tree.parents
        while parents[node] >= 0 and values[parents[node]] is MISSING:
            node = parents[node]
        return node

    def _relation_failures(self, values: list[Any], words: Wording) -> Iterator[str]:
        tree = self.tree
        for a, b in tree.aliases:
            if values[a] is not values[b]:
                yield f"{words.path(a)} and {words.path(b)} were one object"
        seen: dict[int, int] = {}
        for node in (*tree.distinct, *tree.separate):
            other = seen.setdefault(id(values[node]), node)
            if other != node and values[node] is not MISSING:
                what = "tensors" if isinstance(values[node], torch.Tensor) else "objects"
                yield f"{words.path(node)} and {words.path(other)} were different {what}"
        for condition in tree.shapes:
            try:
                holds = shapes.holds(condition, values)
            except Exception:  # noqa: BLE001 - as in accept()
                holds = False
            if not holds:
                yield f"shape condition failed: {shapes.wording(condition, words.path)}"
        # Nodes that don't exist are reported already.
        yield from set_order.failures(tree.orders, values, MISSING, words)


def _equals(value: object, arg: Plain) -> bool:
    found = value if type(value) is str or value is None else encode(value)
    return bool(found == arg) or same(found, arg)


_SIMPLE: dict[Kind, Test] = {
    Kind.EQUALS: _equals,
    Kind.LENGTH: lambda value, arg: len(value) == arg,
    Kind.ABSENT_ATTR: lambda value, arg: arg not in value.__dict__,
    Kind.HAS_ATTR: hasattr,
    Kind.LACKS_ATTR: lambda value, arg: not hasattr(value, arg),
    Kind.CONTAINS: lambda value, arg: decode(arg) in value,
    Kind.NOT_CONTAINS: lambda value, arg: decode(arg) not in value,
    Kind.KEYS: lambda value, arg: _are_names(value, arg) or same(encoded_keys(value, list), arg),
    Kind.KEY_SET: lambda value, arg: same(encoded_keys(value, set), arg),
    Kind.NOT_NONE: lambda value, _: value is not None,
    Kind.ITERATOR: lambda value, arg: iterator_state(value) == arg,
}


_WITH_MEMO: dict[Kind, Any] = {
    Kind.TYPE: Guards._type_is,  # noqa: SLF001
    Kind.IDENTITY: Guards._is,  # noqa: SLF001
    Kind.TENSOR: Guards._tensor_matches,  # noqa: SLF001
}


# The kinds that make up most of a large model's guards, without a call per check.
_FAST: dict[Kind, Callable[[Guards, Rows, list[Any]], bool]] = {
    Kind.TYPE: Guards._types_match,  # noqa: SLF001
    Kind.ABSENT_ATTR: Guards._attributes_absent,  # noqa: SLF001
    Kind.LENGTH: Guards._lengths_match,  # noqa: SLF001
}


def iterator_state(value: Any) -> Plain:
    """What is left in a tuple, range or count iterator, without advancing it."""
    if type(value) is type(iter(())):
        return ["left", operator.length_hint(value)]
    return encode(list(value.__reduce__()[1:]))


def _are_names(value: Any, arg: Any) -> bool:
    """Whether the keys are all str and those of `arg`, in order: nothing has to be encoded."""
    keys = ordered_keys(value)
    return bool(keys == arg[1]) and _ONLY_STR.issuperset(map(type, keys))


_ONLY_STR = frozenset({str})


def _state_failures(recorded: Mapping[str, Plain], live: Mapping[str, object]) -> Iterator[str]:
    for name in sorted({*recorded, *live}):
        if recorded.get(name) != live.get(name):
            yield f"global torch state {name} was {recorded.get(name)!r}, is {live.get(name)!r}"


def _take(items: Iterator[str], limit: int) -> Iterator[str]:
    for position, item in enumerate(items):
        if position == limit:
            yield "and more"
            return
        yield item


# What a graph was specialised on for one tensor input, ready to be compared with live tensors.


class LiveTensorFact(NamedTuple):
    """A `TensorFact` with torch's own objects in it."""

    type: int
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    dispatch_keys: int
    size: tuple[int | None, ...]
    stride: tuple[int | None, ...]
    static: bool
    marks: dict[str, frozenset[int]]

    @classmethod
    def of(cls, *fields: Any) -> LiveTensorFact:
        fact = TensorFact(*fields)
        return cls(
            fact.type,
            decode(["torch", fact.dtype]),
            torch.device(fact.device),
            fact.requires_grad,
            fact.dispatch_keys,
            fact.size,
            fact.stride,
            None not in fact.size and None not in fact.stride,
            {name: frozenset(dims) for name, dims in fact.marks},
        )

    def layout_matches(self, value: torch.Tensor) -> bool:
        if self.static:
            return value.shape == self.size and value.stride() == self.stride
        return (
            value.dim() == len(self.size)
            and all(
                want is None or want == n for want, n in zip(self.size, value.shape, strict=True)
            )
            and all(
                want is None or want == n
                for want, n in zip(self.stride, value.stride(), strict=True)
            )
        )

    def marks_match(self, value: torch.Tensor) -> bool:
        """A tensor may ask for fewer dynamic dimensions than were traced, never for others."""
        live = value.__dict__
        if not live:
            return True
        return all(
            live[name] <= self.marks.get(name, frozenset())
            for name in runtime.DIMENSION_MARKS
            if name in live
        )


# The accelerator and the number of threads that an entry needs.
#
# An entry may say "the current device". When the entry is bound, that becomes the device that is
# current then, and stays that device. In a thread with another current device, or after
# `set_device`, the entry is bound once more.


def placed_here(tree: GuardTree) -> GuardTree:
    """The conditions of a stored entry with the current device's index in them."""
    device = tree.device
    if device is None or device.index is not None:
        return tree
    index = runtime.current_index(device.kind)
    return tree.placed(replace(device, index=index), devices.at(index))


class Place:
    """Whether the device and the number of threads of a call are those that an entry needs."""

    def __init__(self, tree: GuardTree) -> None:
        self._device, self._threads = tree.device, tree.threads
        here = tree.device is not None and runtime.accelerator() == tree.device.kind
        self._index = tree.device.index if tree.device is not None and here else None

    def holds(self) -> bool:
        return self.device_is_current() and self._threads in (None, torch.get_num_threads())

    def device_is_current(self) -> bool:
        return self._device is None or (
            self._index is not None and torch.accelerator.current_device_index() == self._index
        )

    def failures(self) -> Iterator[str]:
        if self._device is not None and self._index is None:
            yield f"there is no {self._device.kind} here"
        elif self._device is not None and not self.device_is_current():
            why = f", which it must be: {self._device.why}" if self._device.why else ""
            yield f"{self._device.name} is not the current device{why}"
        if self._threads not in (None, torch.get_num_threads()):
            yield f"torch.get_num_threads() was {self._threads}, is {torch.get_num_threads()}"
