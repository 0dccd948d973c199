"""Names functions, classes and modules so that any process finds them again by the name."""

from __future__ import annotations

import enum
import hashlib
import sys
import types
from functools import partial
from typing import TYPE_CHECKING, Any

from npugx_cache.covered import is_covered_module
from npugx_cache.portable.found import contents, look_up, unwrap
from npugx_cache.portable.texts import seal
from npugx_cache.portable.values import MAX_DEPTH, NotPortable, Plain, describe, encode

if TYPE_CHECKING:
    from collections.abc import Callable


def identity(value: object, depth: int = 0) -> Plain:
    """What names an object in any process; raises `NotPortable` for one that has no name."""
    if depth > MAX_DEPTH:
        raise NotPortable("nested too deeply, or it contains itself")
    for kinds, name in _IDENTITIES:
        if isinstance(value, kinds):
            return name(value, depth)
    named = _operator_identity(value)
    if named is not None:
        return named
    if type(value).__module__ == "typing":
        return ["typing", repr(value)]
    if "torch" in sys.modules and (group := _group_identity(value)) is not None:
        return group
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


def _builtin_identity(value: Any, depth: int) -> Plain:
    named = ["builtin", _builtin_module(value), value.__qualname__]
    owner = getattr(value, "__self__", None)
    if type(owner) not in _PLAIN_OWNERS:  # a module, a class, or pybind's record of the function
        return named
    return [*named, seal(encode(owner, depth + 1))]  # `",".join` is not `"".join`


_PLAIN_OWNERS = (str, bytes, int, float, complex, list, tuple, dict, set, frozenset, range)


def _builtin_module(value: Any) -> str:
    owner = getattr(value, "__objclass__", None)
    return str(getattr(value, "__module__", None) or getattr(owner, "__module__", "builtins"))


def _operator_identity(value: object) -> Plain | None:
    if "torch" not in sys.modules:  # nothing can be a torch object; keep the CLI free of torch
        return None
    from npugx_cache._compat import runtime

    return runtime.operator_name(value)


_GROUP = "process group"


def _group_identity(value: object) -> Plain | None:
    from npugx_cache._compat import process_groups

    if not process_groups.is_group(value):
        return None
    return [_GROUP, *process_groups.facts_of(value)]


def _method_identity(value: types.MethodType, depth: int) -> Plain:
    owner = value.__self__
    bound_to = owner if isinstance(owner, (type, types.ModuleType)) else type(owner)
    return ["method", identity(value.__func__, depth + 1), identity(bound_to, depth + 1)]


def _partial_identity(value: partial[Any], depth: int) -> Plain:
    parts = (value.func, value.args, value.keywords)
    return ["partial", *(seal(encode(part, depth + 1)) for part in parts)]


def _type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _class_identity(cls: type) -> Plain:
    if _is_named(cls):
        return ["class", cls.__module__, cls.__qualname__]
    # Two classes made by one function share their qualname; their bodies tell them apart.
    return ["class", cls.__module__, cls.__qualname__, class_body_hash(cls)]


def _is_named(cls: type) -> bool:
    """Whether its name leads to a class, which the facts about code are found by."""
    if "<locals>" in cls.__qualname__:
        return False
    try:
        return look_up(cls.__module__, cls.__qualname__) is cls or is_covered_module(cls.__module__)
    except NotPortable:
        return is_covered_module(cls.__module__)


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
        _captured(map(contents, function.__closure__ or ()), depth),
    ]


def _captured(values: Any, depth: int) -> list[Plain]:
    """Encode what a function carries along; a value without a portable form counts by its type.

    Texts are sealed: what a function captured, the traced code need not even have read.
    """
    encoded: list[Plain] = []
    for value in values:
        try:
            # 8: identities of functions nest at most thrice
            encoded.append(seal(encode(value, depth + 8)))
        except NotPortable:
            encoded.append(["type", _type_name(type(value))])
    return encoded


_IDENTITIES: tuple[tuple[Any, Callable[[Any, int], Plain]], ...] = (
    (types.ModuleType, lambda v, _: ["module", v.__name__]),
    (enum.Enum, lambda v, d: ["enum", identity(type(v)), v.name, seal(encode(v._value_, d + 1))]),
    (types.GenericAlias, lambda v, _: ["typing", repr(v)]),  # list[int] passes for a type too
    (types.UnionType, lambda v, _: ["typing", repr(v)]),
    (type, lambda v, _: _class_identity(v)),
    (types.FunctionType, _function_identity),
    (types.CodeType, lambda v, _: ["code", code_hash(v)]),
    (types.MethodType, _method_identity),
    (partial, _partial_identity),
    (_BUILTIN_KINDS, _builtin_identity),
)


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
    elif kind == _GROUP:
        found = _group_of_name(data[1])
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


def _group_of_name(name: str) -> Any:
    from npugx_cache._compat import process_groups

    group = process_groups.find(name)
    if group is None:
        raise NotPortable(f"there is no process group {name!r}")
    return group


def _loaded(name: str) -> types.ModuleType:
    module = sys.modules.get(name)
    if module is None:
        raise NotPortable(f"module {name} is not imported in this process")
    return module


_code_hashes: dict[types.CodeType, str] = {}


def code_hash(code: types.CodeType) -> str:
    """Hash of what a code object does: no file name, line number, or address enters it."""
    known = _code_hashes.get(code)
    # Code objects compare equal by value but not by qualname; the hash leaves names out as well.
    if known is None:
        # One repr for all: a restart hashes a hundred functions before its first call.
        text = repr(_code_parts(code)).encode()
        known = _code_hashes[code] = hashlib.sha256(text).hexdigest()[:32]
    return known


def _code_parts(code: types.CodeType) -> tuple[object, ...]:
    return (
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_code,
        code.co_exceptiontable,
        [c if type(c) in _TOLD_BY_REPR else _constant(c) for c in code.co_consts],
    )


_TOLD_BY_REPR = (str, bytes, int, float, complex, bool, type(None))


def _constant(value: object) -> Plain:
    if isinstance(value, types.CodeType):
        return ["code", code_hash(value)]
    try:
        return encode(value)
    except NotPortable:  # a live object that a code generator put there
        return ["type", _type_name(type(value))]
