"""What Dynamo remembers of sizes, as data: which of them changed between the traces of a function.

torch.compile makes a size symbolic when a trace meets another value than the trace before. That
memory dies with the process; entries of the store keep it, and a restarted worker goes on with it.
Nothing depends on it but which sizes are symbolic: a trace guards what it assumed in any case.
Checked on torch 2.11 and 2.13.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch._dynamo import pgo

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Iterator

Row = list[Any]
"""[source, scalar, sizes, strides]; each value is an int, None (not known), "?" (it changed) or
["stride", dim] for the stride that follows from the next dimension."""


_MAX_INT = 1 << 63


_ours: dict[Any, dict[str, Any]] = {}
"""What Dynamo knows from traces of ours, by function as Dynamo knows it."""


@contextlib.contextmanager
def of_our_traces(function: types.FunctionType) -> Iterator[None]:
    """Inside, Dynamo knows of a function what our traces have told it, and nothing else.

    A torch.compile of the same function by the user does not come to know it.
    """
    memory, key = _memory(function), _code_id(function)
    theirs = dict(memory)
    _exchange(memory, _ours.get(key, {}))
    try:
        yield
    finally:
        _ours[key] = dict(memory)
        _exchange(memory, theirs)


def _exchange(memory: Any, wanted: dict[str, Any]) -> None:
    memory.clear()
    memory.update(wanted)


def recorded(function: types.FunctionType) -> list[Row]:
    """What is known of the arguments of a function, parameters of modules left out."""
    known = _memory(function).items()
    return [
        [name, _plain(entry.scalar), _plain(entry.size), _plain(entry.stride)]
        for name, entry in sorted(known)
        if name.startswith("L[")
        and not name.endswith((".start", ".stop", ".step"))  # Dynamo can't trace symbolic ranges
        and "._parameters[" not in name
        and "._buffers[" not in name
        and not (isinstance(entry.scalar, int) and abs(entry.scalar) >= _MAX_INT)  # msgpack's limit
    ]


def recall(function: types.FunctionType, rows: Iterable[Row]) -> None:
    """Merge what another process knew into what this one knows."""
    memory = _memory(function)
    for name, scalar, size, stride in rows:
        memory[name] |= pgo.FrameStateSizeEntry(
            scalar=_live(scalar), size=_live(size), stride=_live(stride)
        )


def forget(function: types.FunctionType) -> None:
    _memory(function).clear()


def _memory(function: types.FunctionType) -> Any:
    return pgo.get_code_state()[_code_id(function)].automatic_dynamic


def _code_id(function: types.FunctionType) -> Any:
    make: Any = pgo.CodeId.make
    try:
        return make(function.__code__, function.__closure__)
    except TypeError:  # before torch 2.13 the free variables play no part
        return make(function.__code__)


def _plain(value: Any) -> Any:
    if value is pgo.auto_unset:
        return None
    if value is pgo.auto_dynamic:
        return "?"
    if isinstance(value, pgo.InferStride):
        return ["stride", value.dim]
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _live(value: Any) -> Any:
    if value is None:
        return pgo.auto_unset
    if value == "?":
        return pgo.auto_dynamic
    if isinstance(value, list):
        if value[:1] == ["stride"]:
            return pgo.InferStride(value[1])
        return tuple(_live(item) for item in value)
    return value
