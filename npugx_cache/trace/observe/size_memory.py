"""Reads and sets what Dynamo remembers of the sizes that earlier traces of a function met.

Dynamo makes a size symbolic when a trace meets another value than an earlier trace did. This memory
ends with the process. So entries store it, and a restarted worker goes on with it. Only the choice
of symbolic sizes depends on it, because each trace guards what it assumes.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch._dynamo import pgo

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Iterator

Row = list[Any]
"""[source, scalar, sizes, strides] of one argument. A value is an int, None (not known), "?" (it
changed) or, for a stride, ["stride", dim], which stands for stride[dim] * size[dim]. Sizes and
strides are lists of values, or None or "?" as a whole."""


_MAX_INT = 1 << 63


_ours: dict[Any, dict[str, Any]] = {}
"""What Dynamo remembers from our traces, by Dynamo's id of a function."""


@contextlib.contextmanager
def of_our_traces(function: types.FunctionType) -> Iterator[None]:
    """Let Dynamo use inside only what it remembers from our own traces of a function.

    So a `torch.compile` of the same function by the user and our traces do not affect each other.
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


def remembered_sizes(function: types.FunctionType) -> list[Row]:
    """What Dynamo remembers of the arguments of a function, without the parameters of modules."""
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
    """Merge the rows of another process into what Dynamo remembers here."""
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
    except TypeError:  # before torch 2.13 the id takes no closure
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
