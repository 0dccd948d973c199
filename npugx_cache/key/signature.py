"""Describes the arguments of a call in short: to order candidates, to name locks, and for `ls`.

A signature never decides whether an entry is valid; guards do. An argument may be a password or a
token, so the store holds no text of an argument, and nothing of an argument that the code never
reads.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.conditions import Kind, Step
from npugx_cache.portable import describe, digest
from npugx_cache.private.runtime import without_torch_function

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from npugx_cache.conditions import Conditions

_MAX_LEAVES = 256
_MAX_TEXT = 400
_MAX_VALUE = 80
_SHORTEST_REMOVED = 4
_SYMBOLIC = "*"
_NUMBERS = (bool, int, float, torch.dtype, torch.device)
_WALKS = frozenset({Step.KEY_AT, Step.VALUE_AT, Step.REMAINING})
"""Steps from a container of which the code walked the elements."""


class Signature:
    """Describes the arguments of one call and keeps them alive. Texts are made only on demand."""

    def __init__(self, frame_locals: Mapping[str, Any]) -> None:
        self._frame_locals = frame_locals
        self._leaves = [("".join(steps), value) for steps, value in _leaves(frame_locals)]

    @functools.cached_property
    def leaves(self) -> tuple[tuple[str, str], ...]:
        """The paths of all values, with their sizes and numbers, and without strings."""
        return tuple((path, _exact(value)) for path, value in self._leaves)

    @functools.cached_property
    def exact(self) -> str:
        """A digest in which sizes and numbers count and strings don't. Stored with an entry."""
        return digest(f"{path}={text}" for path, text in self.leaves)

    @functools.cached_property
    def kind(self) -> str:
        """A digest in which numbers and strings count and sizes don't. Never stored."""
        return digest(f"{path}={_kind(value)}" for path, value in self._leaves)

    @functools.cached_property
    def types(self) -> str:
        """A digest in which only types count. Names refused calls in a store."""
        return digest(f"{path}={_type(value)}" for path, value in self._leaves)

    @functools.cached_property
    def device_types(self) -> frozenset[str]:
        return frozenset(_device_types(self._frame_locals, self._leaves))


def read_arguments(frame_locals: Mapping[str, Any], tree: Conditions) -> str:
    """The arguments that the conditions of a graph are about, as a text for people.

    `*` stands for a size or a whole number for which the graph is symbolic.
    """
    nodes = _paths(tree)
    equal = _rows(tree, Kind.EQUALS)
    tensors = _rows(tree, Kind.TENSOR)
    exact = {path for path, node in nodes.items() if node in equal or node in _identical(tree)}
    steps_to = zip(tree.parents, tree.steps, strict=True)
    walked_nodes = equal.keys() | {parent for parent, step in steps_to if step in _WALKS}
    walked = {path for path, node in nodes.items() if node in walked_nodes}
    shown = []
    for steps, value in _modules_last(frame_locals):
        path = "".join(steps)
        above = ["".join(steps[:count]) for count in range(1, len(steps))]
        if path in nodes or not walked.isdisjoint(above):
            node = nodes.get(path, -1)
            fact = tree.tensors[tensors[node]] if node in tensors else None
            if fact is not None and isinstance(value, torch.Tensor):
                text = _text_with_sizes(value, fact.size)
            elif type(value) is int and path in nodes and exact.isdisjoint([path, *above]):
                text = _SYMBOLIC
            else:
                text = _text_of_value(value, equal.get(node))
            shown.append(f"{path}: {text}")
    return ", ".join(shown)[:_MAX_TEXT]


def _modules_last(frame_locals: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """All leaves, so that sizes, which tell entries of one model apart, are not cut off."""
    return sorted(_leaves(frame_locals), key=lambda leaf: isinstance(leaf[1], torch.nn.Module))


def _rows(tree: Conditions, kind: Kind) -> dict[int, Any]:
    """The arguments of all checks of one kind, by their nodes."""
    return dict(zip(*tree.checks.get(kind, ((), ())), strict=True))


def _identical(tree: Conditions) -> tuple[int, ...]:
    return tree.checks.get(Kind.IDENTITY, ((), ()))[0]


def kinds_of_arguments(frame_locals: Mapping[str, Any]) -> str:
    """All arguments by type, tensors by shape, for calls of which no graph says what is read."""
    shown = []
    for steps, value in _modules_last(frame_locals):
        path = "".join("[?]" if step.startswith(("['", '["')) else step for step in steps)
        number = isinstance(value, _NUMBERS)
        shown.append(f"{path}: {type(value).__qualname__ if number else _exact(value)}")
    return ", ".join(shown)[:_MAX_TEXT]


def without_texts(reason: str, frame_locals: Mapping[str, Any]) -> str:
    """A reason without the strings among the arguments, which error messages may quote.

    Strings of fewer than four characters stay.
    """
    texts = {value for _, value in _leaves(frame_locals) if type(value) is str}
    for text in sorted(texts, key=len, reverse=True):
        words = f"<a text of {len(text)} characters>"
        if len(text) >= _SHORTEST_REMOVED:
            for form in (repr(text), text):
                reason = reason.replace(form, words)
    return reason


def _paths(tree: Conditions) -> dict[str, int]:
    """The nodes of a tree that are arguments or lie inside of one, by their paths."""
    found: dict[int, str] = {-1: ""}
    for node, parent in enumerate(tree.parents):
        step = _step(tree.node(node).step, tree.args[node])
        if step is not None and parent in found and (parent >= 0) != (step[0] not in ".["):
            found[node] = found[parent] + step
    del found[-1]
    return {path: node for node, path in found.items()}


def _step(step: Step, arg: Any) -> str | None:
    if step == Step.LOCAL:
        return str(arg)
    if step in (Step.ATTR, Step.GENERIC_ATTR):
        return f".{arg}"
    if step in (Step.ITEM, Step.INDEX):
        return f"[{arg!r}]" if isinstance(arg, (str, int)) else "[?]"
    return None


def _leaves(frame_locals: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths and values of the arguments, through the usual containers, without modules."""
    waiting: list[tuple[tuple[str, ...], Any]] = [
        ((name,), value) for name, value in reversed(list(frame_locals.items()))
    ]
    count = 0
    while waiting and count < _MAX_LEAVES:
        path, value = waiting.pop()
        inner = _children(value) if len(path) <= 6 else None
        if inner is None:
            count += 1
            yield path, value
        else:
            waiting += [((*path, step), child) for step, child in reversed(inner)]


def _children(value: object) -> list[tuple[str, Any]] | None:
    """What is inside of a container, without its methods: they may be code of the user's."""
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        items = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
        return [(f"[{i}]", item) for i, item in enumerate(items)]
    if isinstance(value, dict):
        return [(_key(key), item) for key, item in dict.items(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{f.name}", _field(value, f.name)) for f in dataclasses.fields(value)]
    return None


def _field(value: object, name: str) -> object:
    """An attribute from the object's dict or slots; None if it has none, or a property gives it."""
    held = next((vars(cls)[name] for cls in type(value).__mro__ if name in vars(cls)), None)
    try:
        if isinstance(held, types.MemberDescriptorType):
            return held.__get__(value)
        return object.__getattribute__(value, "__dict__").get(name)
    except AttributeError:
        return None


def _key(key: object) -> str:
    return f"[{key!r}]" if type(key) in (str, int, bool) else "[?]"


def _exact(value: object) -> str:
    if isinstance(value, torch.Tensor):
        with without_torch_function():
            return _text_with_sizes(value, value.shape)
    return type(value).__qualname__ if isinstance(value, str) else _kind(value)


def _kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        with without_torch_function():
            return f"{_dtype(value)} of {value.dim()} dimensions"
    if isinstance(value, torch.nn.Module):
        first = _first_parameter(value)
        weights = f", {_dtype(first)}" if first is not None else ""
        return f"{type(value).__qualname__} ({'train' if value.training else 'eval'}{weights})"
    if isinstance(value, str):
        return f"{type(value).__qualname__} {digest([str.__str__(value)])}"
    if value is None or type(value) in _NUMBERS:
        return repr(value)[:_MAX_VALUE]
    if isinstance(value, (int, float)):  # of a class that may have a `__repr__` of its own
        number = int if isinstance(value, int) else float
        return f"{type(value).__qualname__} {number.__repr__(value)}"[:_MAX_VALUE]
    return type(value).__qualname__


def _type(value: object) -> str:
    kind = type(value)
    return kind.__name__ if kind in (str, int, float) else _kind(value)


def _text_with_sizes(value: torch.Tensor, sizes: Iterable[int | None]) -> str:
    """A tensor with these sizes; None is one for which a graph is symbolic."""
    shown = (_SYMBOLIC if size is None else str(size) for size in sizes)
    return f"{_dtype(value)}[{', '.join(shown)}]"


def _text_of_value(value: object, expected: Any) -> str:
    """`expected` is what a guard compares with, without the strings that may not be stored."""
    if type(value) is str and expected is not None:
        return describe(expected)[:_MAX_VALUE]
    return _exact(value)


def _dtype(value: torch.Tensor) -> str:
    kind = _device_type(value)
    device = "" if kind == "cpu" else f" {kind}"
    with without_torch_function():
        return f"{str(value.dtype).removeprefix('torch.')}{device}"


def _device_type(value: torch.Tensor) -> str:
    """The kind of device of a tensor, without code of the user's that may ask it otherwise."""
    with without_torch_function():
        return value.device.type


def _device_types(frame_locals: Mapping[str, Any], leaves: list[tuple[str, Any]]) -> Iterator[str]:
    for _, value in leaves:
        if isinstance(value, torch.Tensor):
            yield _device_type(value)
    for value in frame_locals.values():
        if isinstance(value, torch.nn.Module):
            first = _first_parameter(value)
            if first is not None:
                yield _device_type(first)


def _first_parameter(module: torch.nn.Module) -> torch.Tensor | None:
    """Of those that are tensors: what was written to the dict by hand may be anything."""
    return next((each for each in module.parameters() if isinstance(each, torch.Tensor)), None)
