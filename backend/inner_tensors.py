"""Takes apart tensors that hold other tensors, by torch's protocol `__tensor_flatten__`.

A quantised weight is one tensor for the user, and holds its integers and its scale as attributes.
A program has no such tensors: it takes those that they hold. Imports no compiler.
"""

from __future__ import annotations

from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npugx_cache.portable import NotPortable
from npugx_cache.private import meshes
from npugx_cache.private.runtime import is_wrapper, without_torch_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Parts = tuple[str, ...]
"""The paths (`qdata`, `inner.scale`) to the plain tensors in one tensor, in order; empty for a
value that is passed on as it is."""


def parts_of(value: Any) -> Parts:
    """The parts of a value. Raises `NotPortable` if it holds something else than tensors."""
    return tuple(_paths(value, ())) if is_wrapper(value) else ()


def _paths(value: Any, above: tuple[str, ...]) -> Iterator[str]:
    kind = type(value).__qualname__
    if _is_symbolic(value):
        raise NotPortable(f"a {kind} has sizes that are dynamic")
    names, _ = value.__tensor_flatten__()
    if meshes.is_sharded(value):  # what else it names is its mesh, which a graph does not take
        names = names[:1]
    for name in names:
        inner = getattr(value, name)
        if not str(name).isidentifier():
            raise NotPortable(f"a {kind} holds a tensor under {name!r}, which is no attribute")
        if is_wrapper(inner):
            yield from _paths(inner, (*above, name))
        elif isinstance(inner, torch.Tensor):
            yield ".".join((*above, name))
        else:
            raise NotPortable(f"a {kind} holds a {type(inner).__qualname__} among its tensors")
    if not names:
        raise NotPortable(f"a {kind} holds no tensors")


def _is_symbolic(value: torch.Tensor) -> bool:
    with without_torch_function():
        return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))


def wrappers_in(value: Any) -> Iterator[Any]:
    """The tensor itself, and those in it that hold other tensors."""
    if is_wrapper(value):
        yield value
        for _, inner in held_by(value):
            yield from wrappers_in(inner)


def held_by(value: Any) -> list[tuple[str, Any]]:
    """The tensors that a tensor holds, by the names of its attributes."""
    return [(name, getattr(value, name)) for name in value.__tensor_flatten__()[0]]


def leaves(value: Any, parts: Parts) -> tuple[Any, ...]:
    return tuple(attrgetter(path)(value) for path in parts) if parts else (value,)


def taken_apart(values: Iterable[Any], parts: Iterable[Parts]) -> list[Any]:
    """The values that a program takes for the values of a call."""
    pairs = zip(values, parts, strict=True)
    return [leaf for value, own in pairs for leaf in leaves(value, own)]


def positions(of: Iterable[int], parts: Sequence[Parts]) -> tuple[int, ...]:
    """The positions among the values of a program for positions among those of a call."""
    if not any(parts):
        return tuple(of)
    counts = [len(own) or 1 for own in parts]
    firsts = [0, *accumulate(counts)]
    return tuple(firsts[each] + n for each in of for n in range(counts[each]))


def taking_apart(program: Callable[..., Any], parts: Sequence[Parts]) -> Callable[..., Any]:
    """A callable that takes tensors which hold others, for a program that takes what they hold."""
    if not any(parts):
        return program
    readers = [attrgetter(*own) if own else None for own in parts]
    single = [len(own) == 1 for own in parts]

    def run(*values: Any) -> Any:
        given: list[Any] = []
        for value, read, one in zip(values, readers, single, strict=True):
            if read is None or one:
                given.append(value if read is None else read(value))
            else:
                given += read(value)
        return program(*given)

    return run


class Held(NamedTuple):
    """A traced tensor that holds others, and what it held before the trace."""

    value: Any
    parts: Parts
    leaves: tuple[Any, ...]

    @classmethod
    def by(cls, value: Any) -> Held:
        parts = parts_of(value)
        return cls(value, parts, leaves(value, parts))

    def is_unchanged(self) -> bool:
        """Whether it holds the same tensors as before."""
        return parts_of(self.value) == self.parts and all(
            one is other
            for one, other in zip(leaves(self.value, self.parts), self.leaves, strict=True)
        )
