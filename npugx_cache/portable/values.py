"""Values as plain data.

Two values are equal for the cache exactly when their encodings are equal. The encoding keeps apart
what `==` does not: `1`, `True` and `1.0`; `0.0` and `-0.0`; a list and a tuple; dicts in another
order.
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from npugx_cache.portable.texts import is_sealed, sealed_expression, sealed_words, with_sealed

if TYPE_CHECKING:
    from collections.abc import Callable

Plain = Any
"""None, int, str, bytes or a list of these: what msgpack stores and `==` compares exactly."""

_INT64 = 1 << 63
MAX_DEPTH = 24


class NotPortable(Exception):
    """A value has no form that another process could recognise; the text says which and why."""


def encode(value: object, depth: int = 0) -> Plain:
    """Encode a value, or an object by its identity; raises `NotPortable`."""
    kind = type(value)
    if value is None or kind is str or kind is bytes:
        return value
    if kind is int:
        return value if -_INT64 <= value < _INT64 else ["int", str(value)]  # type: ignore[operator]
    if depth > MAX_DEPTH:
        raise NotPortable("nested too deeply, or it contains itself")
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        return scalar(value)
    container = _CONTAINERS.get(kind)
    if container is not None:
        return container(value, depth + 1)
    if kind.__module__ == "torch":
        encoded = _encode_torch_value(value, depth)
        if encoded is not None:
            return encoded
    return ["id", _identity().identity(value, depth + 1)]


def _identity() -> Any:
    # The two modules need each other: a function's identity holds the values of its defaults.
    from npugx_cache.portable import identity

    return sys.modules[identity.__module__]


def _encode_float(value: Any) -> Plain:
    return ["float", value.hex() if math.isfinite(value) else repr(value)]


def _encode_torch_value(value: Any, depth: int) -> Plain | None:
    torch = _torch()
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return ["torch", str(value).removeprefix("torch.")]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    if type(value) is torch.Size:
        return ["size", [encode(n, depth + 1) for n in value]]
    return None


_SCALARS: dict[type, Any] = {
    bool: lambda v: ["bool", int(v)],
    float: _encode_float,
    complex: lambda v: ["complex", _encode_float(v.real)[1], _encode_float(v.imag)[1]],
    type(Ellipsis): lambda _: ["ellipsis"],
    range: lambda v: ["range", v.start, v.stop, v.step],
}
_CONTAINERS: dict[type, Any] = {
    list: lambda v, d: ["list", [encode(x, d) for x in v]],
    tuple: lambda v, d: ["tuple", [encode(x, d) for x in v]],
    dict: lambda v, d: ["dict", [[encode(k, d), encode(x, d)] for k, x in v.items()]],
    slice: lambda v, d: ["slice", encode(v.start, d), encode(v.stop, d), encode(v.step, d)],
    # Sets iterate in an order that depends on PYTHONHASHSEED.
    set: lambda v, d: ["set", sorted((encode(x, d) for x in v), key=repr)],
    frozenset: lambda v, d: ["frozenset", sorted((encode(x, d) for x in v), key=repr)],
}


def ordered_keys(mapping: Any) -> list[Any]:
    """The keys as Python walks them, past overrides in subclasses of dict.

    `dict.keys` of an OrderedDict does not know of `move_to_end`.
    """
    if type(mapping) is dict:
        return list(mapping)
    if isinstance(mapping, OrderedDict):
        return list(OrderedDict.keys(mapping))
    return list(dict.keys(mapping)) if isinstance(mapping, dict) else list(mapping.keys())


def encoded_keys(mapping: Any, kind: type[list[Any] | set[Any]]) -> Plain:
    """The keys of a mapping as an encoded list or set."""
    keys = ordered_keys(mapping)
    if {*map(type, keys)} <= {str}:  # encoded, a str is itself; sorted as `encode` sorts a set
        return [kind.__name__, keys if kind is list else sorted(keys, key=repr)]
    return encode(kind(keys))


def decode(data: Plain) -> Any:
    """Rebuild a value. Only what `encode` can write is accepted; raises `NotPortable` otherwise."""
    if not isinstance(data, list):
        return data
    if data and data[0] == "id":
        return _identity().resolve(data[1])
    if not data or not isinstance(data[0], str) or data[0] not in _DECODERS:
        raise NotPortable(f"unknown encoding {str(data)[:60]}")
    return _DECODERS[data[0]](*data[1:])


def _decode_float(text: str) -> float:
    return float.fromhex(text) if "x" in text else float(text)


def _decode_torch(name: str) -> Any:
    torch = sys.modules["torch"]
    value = getattr(torch, name, None)
    if not isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        raise NotPortable(f"torch.{name} is not a dtype, layout or memory format")
    return value


_DECODERS: dict[str, Any] = {
    "int": int,
    "bool": bool,
    "float": _decode_float,
    "complex": lambda re, im: complex(_decode_float(re), _decode_float(im)),
    "ellipsis": lambda: Ellipsis,
    "range": range,
    "list": lambda items: [decode(x) for x in items],
    "tuple": lambda items: tuple(decode(x) for x in items),
    "dict": lambda items: {decode(k): decode(v) for k, v in items},
    "slice": lambda a, b, c: slice(decode(a), decode(b), decode(c)),
    "set": lambda items: {decode(x) for x in items},
    "frozenset": lambda items: frozenset(decode(x) for x in items),
    "torch": _decode_torch,
    "device": lambda text: _torch().device(text),
    "size": lambda items: _torch().Size([decode(x) for x in items]),
}


def _torch() -> Any:
    return sys.modules["torch"]


def describe(data: Plain) -> str:
    """A short text for people, from encoded data alone."""
    if not isinstance(data, list):
        return repr(data)
    if is_sealed(data):
        return sealed_words(data)
    kind, rest = data[0], data[1:]
    if kind in ("list", "tuple", "set", "frozenset", "size"):
        inner = ", ".join(describe(item) for item in rest[0])
        return {"list": f"[{inner}]", "tuple": f"({inner})"}.get(kind, f"{kind}({inner})")
    described = _DESCRIBED.get(kind)
    return described(*rest) if described else f"{kind} " + ", ".join(map(str, rest))


_DESCRIBED: dict[str, Callable[..., str]] = {
    "class": lambda module, name, *_: f"{module}.{name}",
    "builtin": lambda module, name, *_: f"{module}.{name}",
    "function": lambda module, name, code, *_: f"{module}.{name} (code {code[:8]})",
    "id": lambda named, *_: describe(named),
    "method": lambda function, *_: describe(function),
    "enum": lambda cls, name, _: f"{describe(cls)}.{name}",
    "float": lambda text: repr(float.fromhex(text)) if "x" in text else f"float {text}",
    "bool": lambda value: str(bool(value)),
    "dict": lambda items: (
        "{" + ", ".join(f"{describe(key)}: {describe(value)}" for key, value in items) + "}"
    ),
}


class _Verbatim(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def expression(data: Plain) -> str:
    """The same as Python might have it, for the text of an entry."""
    return describe(with_sealed(data, lambda text: _Verbatim(sealed_expression(text))))
