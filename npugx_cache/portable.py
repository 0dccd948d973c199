"""Live Python values as plain, canonical data, and back.

Two values are equal for the cache exactly when their encodings are equal. The encoding keeps apart
what `==` does not: `1`, `True` and `1.0`; `0.0` and `-0.0`; a list and a tuple; dicts in another
order. Objects that have no value of their own (functions, classes, modules, operators) are encoded
by *identity*: what another process can find again, never an address.
"""

from __future__ import annotations

import enum
import hashlib
import math
import sys
import types
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Plain = Any
"""None, int, str, bytes or a list of these: what msgpack stores and `==` compares exactly."""

_INT64 = 1 << 63
_MAX_DEPTH = 24


class NotPortable(Exception):
    """A value has no form that another process could recognise; the text says which and why."""


def encode(value: object, depth: int = 0) -> Plain:
    """Encode a value, or an object by its identity; raises `NotPortable`."""
    kind = type(value)
    if value is None or kind is str or kind is bytes:
        return value
    if kind is int:
        return value if -_INT64 <= value < _INT64 else ["int", str(value)]  # type: ignore[operator]
    if depth > _MAX_DEPTH:
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
    return ["id", identity(value, depth + 1)]


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


def decode(data: Plain) -> Any:
    """Rebuild a value. Only what `encode` can write is accepted; raises `NotPortable` otherwise."""
    if not isinstance(data, list):
        return data
    if data and data[0] == "id":
        return resolve(data[1])
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


def identity(value: object, depth: int = 0) -> Plain:
    """What names an object in any process; raises `NotPortable` for one that has no name."""
    if depth > _MAX_DEPTH:
        raise NotPortable("nested too deeply, or it contains itself")
    for kinds, name in _IDENTITIES:
        if isinstance(value, kinds):
            return name(value, depth)
    named = _operator_identity(value)
    if named is not None:
        return named
    if type(value).__module__ == "typing":
        return ["typing", repr(value)]
    raise NotPortable(f"an object of type {_type_name(type(value))} has no name across processes")


_BUILTIN_KINDS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
)


def _builtin_module(value: Any) -> str:
    owner = getattr(value, "__objclass__", None)
    return str(getattr(value, "__module__", None) or getattr(owner, "__module__", "builtins"))


def _operator_identity(value: object) -> Plain | None:
    if "torch" not in sys.modules:  # nothing can be a torch object; keep the CLI free of torch
        return None
    from npugx_cache._compat import runtime

    return runtime.operator_name(value)


def _method_identity(value: types.MethodType, depth: int) -> Plain:
    owner = value.__self__
    bound_to = owner if isinstance(owner, (type, types.ModuleType)) else type(owner)
    return ["method", identity(value.__func__, depth + 1), identity(bound_to, depth + 1)]


def _partial_identity(value: partial[Any], depth: int) -> Plain:
    parts = (value.func, value.args, value.keywords)
    return ["partial", *(encode(part, depth + 1) for part in parts)]


def _type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _class_identity(cls: type) -> Plain:
    if "<locals>" not in cls.__qualname__:
        return ["class", cls.__module__, cls.__qualname__]
    # Two classes made by one function share their qualname; their bodies tell them apart.
    return ["class", cls.__module__, cls.__qualname__, class_body_hash(cls)]


def class_body_hash(cls: type) -> str:
    """Hash of a class's own functions, plain values and bases."""
    digest = hashlib.sha256()
    for base in cls.__bases__:
        digest.update(repr(identity(base)).encode())
    for name, member in sorted(vars(cls).items()):
        digest.update(name.encode())
        function = unwrap(member)
        if isinstance(function, types.FunctionType):
            digest.update(code_hash(function.__code__).encode())
        elif isinstance(member, (int, float, str, bytes, bool, tuple, type(None))):
            digest.update(repr(member).encode())
    return digest.hexdigest()[:32]


def _function_identity(function: types.FunctionType, depth: int) -> Plain:
    return [
        "function",
        function.__module__,
        function.__qualname__,
        code_hash(function.__code__),
        _captured(function.__defaults__ or (), depth),
        _captured((function.__kwdefaults__ or {}).values(), depth),
        _captured(_cell_contents(function), depth),
    ]


def _cell_contents(function: types.FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            yield None


def _captured(values: Any, depth: int) -> list[Plain]:
    """Encode what a function carries along; a value without a portable form counts by its type."""
    encoded: list[Plain] = []
    for value in values:
        try:
            encoded.append(
                encode(value, depth + 8)
            )  # 8: identities of functions nest at most thrice
        except NotPortable:
            encoded.append(["type", _type_name(type(value))])
    return encoded


_IDENTITIES: tuple[tuple[Any, Callable[[Any, int], Plain]], ...] = (
    (types.ModuleType, lambda v, _: ["module", v.__name__]),
    (enum.Enum, lambda v, d: ["enum", identity(type(v)), v.name, encode(v._value_, d + 1)]),
    (types.GenericAlias, lambda v, _: ["typing", repr(v)]),  # list[int] passes for a type too
    (types.UnionType, lambda v, _: ["typing", repr(v)]),
    (type, lambda v, _: _class_identity(v)),
    (types.FunctionType, _function_identity),
    (types.CodeType, lambda v, _: ["code", code_hash(v)]),
    (types.MethodType, _method_identity),
    (partial, _partial_identity),
    (_BUILTIN_KINDS, lambda v, _: ["builtin", _builtin_module(v), v.__qualname__]),
)


def unwrap(member: object) -> object:
    """The plain function behind a descriptor, partial or `functools.wraps` decoration."""
    for _ in range(_MAX_DEPTH):
        for attribute in ("__func__", "fget", "__wrapped__", "func"):
            inner = getattr(member, attribute, None)
            if inner is not None and not isinstance(member, types.FunctionType):
                member = inner
                break
        else:
            return member
    return member


def resolve(data: Plain) -> Any:
    """Find the object of an identity among loaded modules; raises `NotPortable`.

    Never imports: a module that the caller has not loaded is a miss, not a side effect.
    """
    kind = data[0]
    if kind == "module":
        return _loaded(data[1])
    if kind in ("class", "function", "builtin"):
        found: Any = _loaded(data[1])
        for part in data[2].split("."):
            found = getattr(found, part, _ABSENT)
            if found is _ABSENT:
                raise NotPortable(f"{data[1]}.{data[2]} does not exist")
    elif kind == "enum":
        found = resolve(data[1])[data[2]]
    elif kind == "op":
        found = resolve_op(*data[1:])
    elif kind == "method":
        found = getattr(resolve(data[2]), data[1][2].rpartition(".")[2], _ABSENT)
    else:
        raise NotPortable(f"a {kind} can't be looked up by name")
    if identity(found) != data:
        raise NotPortable(f"{describe(data)} is not the one that was recorded")
    return found


_ABSENT = object()


def resolve_op(namespace: str, name: str, overload: str) -> Any:
    """`torch.ops.<namespace>.<name>.<overload>`; raises `NotPortable` when it is not registered."""
    torch = sys.modules["torch"]
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    except AttributeError:
        raise NotPortable(f"operator {namespace}::{name}.{overload} is not registered") from None


def _loaded(name: str) -> types.ModuleType:
    module = sys.modules.get(name)
    if module is None:
        raise NotPortable(f"module {name} is not imported in this process")
    return module


def describe(data: Plain) -> str:
    """A short text for people, from encoded data alone."""
    if not isinstance(data, list):
        return repr(data)
    kind, rest = data[0], data[1:]
    if kind in ("class", "builtin"):
        return f"{rest[0]}.{rest[1]}"
    if kind == "function":
        return f"{rest[0]}.{rest[1]} (code {rest[2][:8]})"
    if kind in ("id", "method"):
        return describe(rest[0])
    if kind == "enum":
        return f"{describe(rest[0])}.{rest[1]}"
    if kind == "float" and "x" in rest[0]:
        return repr(float.fromhex(rest[0]))
    if kind == "bool":
        return str(bool(rest[0]))
    if kind in ("list", "tuple", "set", "frozenset", "size"):
        inner = ", ".join(describe(item) for item in rest[0])
        return {"list": f"[{inner}]", "tuple": f"({inner})"}.get(kind, f"{kind}({inner})")
    if kind == "dict":
        return "{" + ", ".join(f"{describe(k)}: {describe(v)}" for k, v in rest[0]) + "}"
    return f"{kind} " + ", ".join(str(part) for part in rest)


_code_hashes: dict[types.CodeType, str] = {}


def code_hash(code: types.CodeType) -> str:
    """Hash of what a code object does: no file name, line number, or address enters it."""
    known = _code_hashes.get(code)
    # Code objects compare equal by value but not by qualname; the hash leaves names out as well.
    if known is None:
        digest = hashlib.sha256()
        for part in _code_parts(code):
            digest.update(part)
            digest.update(b"\0")
        known = _code_hashes[code] = digest.hexdigest()[:32]
    return known


def _code_parts(code: types.CodeType) -> Iterator[bytes]:
    shape = (
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
    )
    yield repr(shape).encode()
    yield code.co_code
    yield code.co_exceptiontable
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield code_hash(constant).encode()
        else:
            yield repr(_constant(constant)).encode()


def _constant(value: object) -> Plain:
    try:
        return encode(value)
    except NotPortable:  # a live object that a code generator put there
        return ["type", _type_name(type(value))]
