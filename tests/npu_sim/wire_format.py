"""Reads the wire format of protobuf, as far as a graph for the graph engine (GE) needs it.

The simulator reads graphs in restarted processes, in which a test wants protobuf not to be loaded.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Schema = dict[int, tuple[str, Any]]
"""Number of a field -> its name, and its type: int, float, bytes, str or the schema of a message.

A list of a type is a repeated field, and "map" one of pairs whose values have the schema.
"""

SHAPE: Schema = {1: ("dim", [int])}
DESCRIPTION: Schema = {2: ("dtype", int), 3: ("shape", SHAPE)}
TENSOR: Schema = {1: ("desc", DESCRIPTION), 2: ("data", bytes)}
LIST: Schema = {2: ("s", [bytes]), 3: ("i", [int]), 4: ("f", [float]), 5: ("b", [int])}
ATTRIBUTE: Schema = {
    1: ("list", LIST),
    2: ("s", bytes),
    3: ("i", int),
    4: ("f", float),
    5: ("b", int),
    12: ("t", TENSOR),
}
OPERATOR: Schema = {
    1: ("name", str),
    2: ("type", str),
    5: ("input", [str]),
    10: ("attr", ("map", ATTRIBUTE)),
    34: ("output_desc", [DESCRIPTION]),
}
GRAPH: Schema = {1: ("name", str), 6: ("op", [OPERATOR])}
MODEL: Schema = {7: ("graph", [GRAPH])}


def read(data: bytes, schema: Schema) -> dict[str, Any]:
    """A message as a dict; fields that are not in it have the default values of protobuf."""
    found = {name: _default(kind) for name, kind in schema.values()}
    for number, value in _fields(data):
        name, kind = schema.get(number, ("", None))
        if isinstance(kind, tuple):
            entry = read(value, {1: ("key", str), 2: ("value", kind[1])})
            found[name][entry["key"]] = entry["value"]
        elif isinstance(kind, list):
            found[name] += _several(value, kind[0])
        elif name:
            found[name] = _one(value, kind)
    return found


def _default(kind: Any) -> Any:
    if isinstance(kind, dict):
        return {name: _default(each) for name, each in kind.values()}
    return [] if isinstance(kind, list) else {} if isinstance(kind, tuple) else kind()


def _several(value: Any, kind: Any) -> list[Any]:
    if isinstance(value, bytes) and kind is int:
        return [_signed(each) for each in _numbers(value)]
    if isinstance(value, bytes) and kind is float:
        return list(struct.unpack(f"<{len(value) // 4}f", value))
    return [_one(value, kind)]


def _one(value: Any, kind: Any) -> Any:
    if isinstance(kind, dict):
        return read(value, kind)
    if kind is str:
        return value.decode()
    if kind is float:
        return struct.unpack("<f", struct.pack("<I", value))[0]
    return _signed(value) if kind is int else value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _numbers(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _number(data, at)
        yield value


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        match tag & 7:
            case 0:
                value, at = _number(data, at)
                yield tag >> 3, value
            case 2:
                size, at = _number(data, at)
                yield tag >> 3, data[at : at + size]
                at += size
            case 1 | 5 as width:
                size = 8 if width == 1 else 4
                yield tag >> 3, int.from_bytes(data[at : at + size], "little")
                at += size


def attribute(attributes: Mapping[str, Any], name: str) -> Any:
    """An attribute of an operator; protobuf's defaults if the operator does not have it."""
    return attributes.get(name) or _default(ATTRIBUTE)
