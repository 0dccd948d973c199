"""Rules about values that come into a trace from outside: each has a guard on its own place.

A guard on a place that is derived from a value is not enough: `(2.0).__mul__` is guarded in its
`__self__` and not in its name. Dynamo forgets the guard for some values. Each of them gets one
here: on its value if that is a constant, on its identity if a name leads to it, and else on its
type, because what is read of an object has places of its own. A guard becomes a condition where
another process can ask it, and a refusal where no other process can.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._dynamo.guards import GuardBuilder
from torch._guards import GuardSource

from npugx_cache.portable import is_covered_class
from npugx_cache.trace.rules import pure
from npugx_cache.trace.stack_value import (
    CONSTANTS,
    NONE,
    StackValue,
    classes_of,
    look_behind,
    type_of,
)
from npugx_cache.trace.tracing import full_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

NAMED = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType),
)
"""Types of objects to which a name leads, or which are refused."""


class Entry(NamedTuple):
    """A value that Dynamo looked at; `stack` is the place in the user's code.

    `owner`: the object of which the value was read as an attribute, if that is known.
    """

    value: Any
    variable: Any
    stack: Any
    owner: StackValue | None = None


class Unguarded(NamedTuple):
    """A value without a guard. `guard` is the one to add, or None where no guard can hold."""

    source: Any
    guard: Any
    entry: Entry


def unguarded_values(
    entries: Mapping[Any, Entry], graph: Any, is_fact: Callable[[type, str], bool]
) -> Iterator[Unguarded]:
    """The values that Dynamo looked at and did not guard.

    `is_fact` tells whether it is a condition of the trace in which class a name is found.
    """
    guarded = _guarded_names(graph)
    by_name = {full_name(source): entry for source, entry in entries.items()}
    for source, each in entries.items():
        if full_name(source) in guarded:
            continue
        entry = each if each.owner is not None else _with_owner(source, each, by_name)
        if _is_excused(source, entry, by_name, is_fact):
            continue
        # For `function.__qualname__` Dynamo gives the descriptor, which equals no text.
        is_known = entry.value is not NONE and not _is_descriptor(entry.value)
        yield Unguarded(source, _kind_of_guard(entry.value) if is_known else None, entry)


_DESCRIPTORS = frozenset(
    value
    for kind in (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
    for value in vars(kind).values()
    if isinstance(value, types.GetSetDescriptorType)
)
"""What functions have for attributes that C code computes."""


def _is_descriptor(value: object) -> bool:
    return isinstance(value, types.GetSetDescriptorType) and value in _DESCRIPTORS


def _with_owner(source: Any, entry: Entry, entries: Mapping[str, Entry]) -> Entry:
    """The entry with the object that its source leads through, if that came in before.

    By name, because Dynamo has several sources for one place.
    """
    base = getattr(source, "base", None)
    holder = entries.get(full_name(base)) if base is not None else None
    if holder is None:
        return entry
    return entry._replace(owner=look_behind(holder.variable)._replace(value=holder.value))


def _guarded_names(graph: Any) -> set[str]:
    """The places that have a guard of their own; whether an attribute exists does not count."""
    names = set()
    for guard in graph.guards:
        create = getattr(guard.create_fn, "func", guard.create_fn)
        if create.__name__ != "HASATTR":
            names.add(full_name(guard.originating_source))
    names.update(map(full_name, graph.input_source_to_sizes_strides))
    names.update(map(str, getattr(graph.shape_env, "source_to_var", None) or ()))
    return names


def _kind_of_guard(value: object) -> Any:
    if type(value) in CONSTANTS:
        return GuardBuilder.CONSTANT_MATCH
    return GuardBuilder.ID_MATCH if issubclass(type(value), NAMED) else GuardBuilder.TYPE_MATCH


def _is_excused(
    source: Any,
    entry: Entry,
    by_name: Mapping[str, Entry],
    is_fact: Callable[[type, str], bool],
) -> bool:
    """Whether a value needs no guard of its own; there are five kinds of such values.

    - Dynamo has put the value aside and not looked at it, or only the graph will.
    - The value is an answer that Dynamo made, and the question is a condition.
    - A cell holds the class around a method, for `super()`: the code of the class body made it.
    - The value is what the code object of a function says, which is guarded by its code.
    - The value is a member of a class that a condition, or a version in the key, holds.
    """
    if look_behind(entry.variable).is_waiting:
        return True
    if source.guard_source is GuardSource.CONSTANT:
        return True
    if getattr(source, "freevar_name", None) == "__class__":
        return isinstance(entry.value, type)
    if _is_of_code(source, by_name):
        return True
    name = getattr(source, "member", None)
    if not isinstance(name, str) or entry.owner is None:
        return False
    return _is_member(entry.owner, name, is_fact)


def _is_of_code(source: Any, by_name: Mapping[str, Entry]) -> bool:
    """Whether a source leads through the code of a function, which has a guard on the code."""
    while (base := getattr(source, "base", None)) is not None:
        holder = by_name.get(full_name(base))
        is_function = holder is not None and isinstance(holder.value, types.FunctionType)
        if getattr(source, "member", None) == "__code__" and is_function:
            return True
        source = base
    return False


def _is_member(owner: StackValue, name: str, is_fact: Callable[[type, str], bool]) -> bool:
    """Whether a class gives the attribute, and it is known that this class still does."""
    classes = classes_of(owner)
    holder = next((each for each in classes if name in vars(each)), None)
    # What torch asks a class of tensors for itself is one of the class's special methods.
    is_of_torch = holder is None or is_covered_class(holder) or name == "__torch_function__"
    if torch.Tensor in classes and is_of_torch:
        return name in pure.TENSOR_ATTRIBUTES or callable(getattr(torch.Tensor, name, None))
    is_class = isinstance(owner.value, type)
    own = None if is_class or owner.value is NONE else getattr(owner.value, "__dict__", None)
    if isinstance(own, dict) and name in own:
        return False
    if holder is None or isinstance(member := vars(holder)[name], _SLOTS):
        return name == "__dict__"  # what is in there has places of its own
    if is_covered_class(holder):
        return True
    if not hasattr(type(member), "__get__"):
        return False  # which class has the name says nothing about a value
    kind = type_of(owner)
    return (kind is not None and is_fact(kind, name)) or (is_class and is_fact(owner.value, name))


_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)
"""Attributes that each object has of its own, such as the `func` of a partial."""
