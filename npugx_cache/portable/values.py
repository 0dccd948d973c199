"""Encodes values as plain data, and names objects so that another process finds them again.

Two values are equal for the cache exactly if their encodings are equal. The encoding distinguishes
what `==` does not: `1`, `True` and `1.0`; `0.0` and `-0.0`; dicts with the same items in another
order.
"""

from __future__ import annotations

import enum
import hashlib
import math
import operator
import re
import sys
import types
from collections import OrderedDict
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.portable.stable_text import stable_text
from npugx_cache.portable.texts import is_sealed, seal, sealed_expression, sealed_words, with_sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Plain = Any
"""None, int, str, bytes or a list of these: what msgpack stores and `==` compares exactly."""

_INT64 = 1 << 63
MAX_DEPTH = 24


class NotPortable(Exception):
    """A value has no form that another process could recognise; the text names the reason."""


class OnlyHere(NotPortable):
    """Nothing is missing but that form: in the process that traced, the graph is right.

    There torch's own guards and `trace.process_local` see whatever may change. A refusal that does
    not say so runs eagerly.
    """


def encode(value: object, depth: int = 0) -> Plain:
    """The encoding of a value, or of an object by its identity; raises `NotPortable`."""
    kind = type(value)
    if value is None or kind is str or kind is bytes:
        return value
    if kind is re.Pattern:
        return _encode_pattern(value)  # type: ignore[arg-type]
    if kind is int:
        return value if -_INT64 <= value < _INT64 else ["int", str(value)]  # type: ignore[operator]
    if depth > MAX_DEPTH:
        raise NotPortable("a value is nested too deeply, or contains itself")
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        return scalar(value)
    container = _CONTAINERS.get(kind)
    if container is not None:
        return container(value, depth + 1)
    if kind.__module__ in ("torch", "torch.torch_version"):
        encoded = _encode_torch_value(value, depth)
        if encoded is not None:
            return encoded
    if is_float_of_numpy(value):
        return ["numpy", kind.__name__, _encode_float(float(value))[1]]  # type: ignore[arg-type]
    return ["id", identity(value, depth + 1)]


def is_float_of_numpy(value: object) -> bool:
    """Whether it is a `numpy.float64`, which is a float. Does not load NumPy."""
    kind = type(value)
    return kind.__name__ == "float64" and kind.__module__ == "numpy" and isinstance(value, float)


def _encode_float(value: Any) -> Any:
    return ["float", value.hex() if math.isfinite(value) else repr(value)]


def _encode_pattern(value: re.Pattern[Any]) -> Any:
    if value.flags & (re.LOCALE | re.DEBUG):  # asks for the locale, or prints
        raise NotPortable("a pattern of re has the flag LOCALE or DEBUG")
    return ["pattern", value.pattern, value.flags]


def _encode_torch_value(value: Any, depth: int) -> Plain | None:
    torch = _torch()
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return ["torch", str(value).removeprefix("torch.")]
    if isinstance(value, torch.device):
        return ["device", str(value)]
    if isinstance(value, (torch.finfo, torch.iinfo)):
        return [type(value).__name__, value.dtype]
    if type(value) is torch.Size:
        return ["size", [encode(n, depth + 1) for n in value]]
    if type(value) is type(torch.__version__):  # what a version does depends on its text alone
        return ["torch_version", str(value)]
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
    # Sorted, because the order in which a set is walked depends on PYTHONHASHSEED.
    set: lambda v, d: ["set", sorted((encode(x, d) for x in v), key=repr)],
    frozenset: lambda v, d: ["frozenset", sorted((encode(x, d) for x in v), key=repr)],
}


def ordered_keys(mapping: Any) -> list[Any]:
    """The keys in the order in which Python walks them; overrides in subclasses are not called.

    For an OrderedDict we use its own `keys`, because `dict.keys` ignores `move_to_end`.
    """
    if type(mapping) is dict:
        return list(mapping)
    if isinstance(mapping, OrderedDict):
        return list(OrderedDict.keys(mapping))
    return list(dict.keys(mapping)) if isinstance(mapping, dict) else list(mapping.keys())


def encoded_keys(mapping: Any, kind: type[list[Any] | set[Any]]) -> Plain:
    """The keys of a mapping as an encoded list or set."""
    keys = ordered_keys(mapping)
    if {*map(type, keys)} <= {str}:  # fast path: a str is its own encoding; sorted as in `encode`
        return [kind.__name__, keys if kind is list else sorted(keys, key=repr)]
    return encode(kind(keys))


def decode(data: Plain) -> Any:
    """The value of an encoding; raises `NotPortable` for an encoding that `encode` can't write."""
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


def _decode_numpy(name: str, text: str) -> Any:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or name != "float64":
        raise NotPortable(f"there is no numpy.{name} in this process")
    return numpy.float64(_decode_float(text))


def _decode_limits(name: str) -> Callable[[str], Any]:
    return lambda dtype: getattr(_torch(), name)(_decode_torch(dtype))


def _decode_version(text: str) -> Any:
    return type(_torch().__version__)(text)


_DECODERS: dict[str, Any] = {
    "numpy": _decode_numpy,
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
    "torch_version": _decode_version,
    "finfo": _decode_limits("finfo"),
    "iinfo": _decode_limits("iinfo"),
    "pattern": re.compile,
}


def _torch() -> Any:
    return sys.modules["torch"]


def describe(data: Plain) -> str:
    """Encoded data as a short text for people."""
    if not isinstance(data, list):
        return repr(data)
    if is_sealed(data):
        return sealed_words(data)
    kind, rest = data[0], data[1:]
    if kind in ("list", "tuple", "set", "frozenset", "size"):
        inner = ", ".join(describe(item) for item in rest[0])
        alone = "," if len(rest[0]) == 1 else ""
        return {"list": f"[{inner}]", "tuple": f"({inner}{alone})"}.get(kind, f"{kind}({inner})")
    described = _DESCRIBED.get(kind)
    return described(*rest) if described else f"{kind} " + ", ".join(map(str, rest))


_DESCRIBED: dict[str, Callable[..., str]] = {
    "class": lambda module, name, *_: f"{module}.{name}",
    "builtin": lambda module, name, *_: f"{module}.{name}",
    "function": lambda module, name, code, *_: f"{module}.{name} (code {code[:8]})",
    "id": lambda named, *_: describe(named),
    "method": lambda function, *_: describe(function),
    "enum": lambda cls, name, _: f"{describe(cls)}.{name}",
    "numpy": lambda kind, text: f"numpy.{kind}({describe(['float', text])})",
    "torch_version": repr,
    "float": lambda text: repr(float.fromhex(text)) if "x" in text else f"float {text}",
    "bool": lambda value: str(bool(value)),
    "dict": lambda items: (
        "{" + ", ".join(f"{describe(key)}: {describe(value)}" for key, value in items) + "}"
    ),
}


class _Verbatim(str):
    """A text that `describe` shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def expression(data: Plain) -> str:
    """As `describe`, but with sealed texts as Python calls, for the readable text of an entry."""
    return describe(with_sealed(data, lambda text: _Verbatim(sealed_expression(text))))


# --- finds code by module and qualified name, also behind descriptors and decorators


_MAX_CHAIN = 64


def unwrap(member: object) -> object:
    """The plain function behind a descriptor, a partial or a decorator with `functools.wraps`.

    Returns the innermost object if there is no function behind it. No code of the user's is run: a
    decorator may have captured a proxy that raises, or imports something, when it is asked.
    """
    for _ in range(MAX_DEPTH):
        kind = type(member)
        if kind in _INNERMOST:
            return member
        if kind in _HOLDS_FUNCTION:
            member = member.__func__  # type: ignore[attr-defined]
            continue
        if kind is property:
            member = member.fget  # type: ignore[attr-defined]
            continue
        if not (kind.__flags__ & _MADE_BY_PYTHON or kind.__dictoffset__):
            return member  # of a type in C that holds nothing, such as a capsule
        for attribute in ("__func__", "fget", "__wrapped__", "func"):
            inner = _held_attribute(member, attribute)
            if inner is not None:
                member = inner
                break
        else:
            return member
    return member


_INNERMOST = frozenset(
    {
        *(types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType),
        *(types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.MethodWrapperType),
        *(types.GetSetDescriptorType, types.MemberDescriptorType, types.NoneType),
        *(bool, int, float, str, bytes, tuple, list, dict, set, frozenset),
    }
)
"""What has no function inside. Most members of classes are of these types, and are not searched."""

_HOLDS_FUNCTION = frozenset({staticmethod, classmethod, types.MethodType})


def _held_attribute(owner: object, name: str) -> object:
    """An attribute that an object or its class holds, found without its properties; or None."""
    spaces = (vars(base) for base in type(owner).__mro__)
    found: Any = next((space[name] for space in spaces if name in space), None)
    if type(found) in _SLOTS:
        try:
            return found.__get__(owner)
        except Exception:  # noqa: BLE001 - nothing is in the slot
            return None
    own = None if name == "__dict__" else _held_attribute(owner, "__dict__")
    if type(own) is dict and name in own:
        return own[name]
    is_method = isinstance(found, (types.FunctionType, staticmethod, classmethod))
    return found if is_method or not hasattr(type(found), "__get__") else None


_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def look_up(module: str, name: str) -> object:
    """The object with a qualified name in a loaded module, as its class holds it.

    Raises `NotPortable`.
    """
    found: Any = sys.modules.get(module)
    if found is None:
        raise OnlyHere(f"module {module} is not imported in this process")
    for part in name.split("."):
        # getattr would call a property and unwrap a staticmethod, whose code we want to find.
        owners = getattr(found, "__mro__", (found,))
        for owner in owners:
            space: Any = getattr(owner, "__dict__", {})  # a property, for example, has none
            if part in space:
                found = space[part]
                break
        else:
            raise OnlyHere(f"{module}.{name} does not exist")
    return found


def function_chain(found: object) -> list[types.FunctionType]:
    """The function behind an object, and the functions that its decorators wrap.

    These are found in `__wrapped__` and in closures. Raises `NotPortable` for more than 64.
    """
    chain: list[types.FunctionType] = []
    waiting = [found]
    while waiting:
        function = unwrap(waiting.pop(0))
        if type(function) is not types.FunctionType or function in chain:
            continue
        if len(chain) == _MAX_CHAIN:
            raise NotPortable(f"{chain[0].__qualname__} leads to more than {_MAX_CHAIN} functions")
        chain.append(function)
        waiting += [getattr(function, "__wrapped__", None)]
        waiting += [contents(cell) for cell in function.__closure__ or ()]
    return chain


def all_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those inside of it, such as those of nested functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from all_code(constant)


def contents(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


# --- names functions, classes and modules so that any process finds them again


def identity(value: object, depth: int = 0) -> Plain:
    """The identity of an object: a name that means the same object in any process.

    Raises `NotPortable` for an object that has no such name.
    """
    if depth > MAX_DEPTH:
        raise NotPortable("a value is nested too deeply, or contains itself")
    for kinds, name in _IDENTITIES:
        if isinstance(value, kinds):
            return name(value, depth)
    named = _operator_identity(value) or _numpy_identity(value)
    if named is not None:
        return named
    if type(value).__module__ == "typing":
        return ["typing", repr(value)]
    if "torch" in sys.modules and (named := _distributed_identity(value)) is not None:
        return named
    if _is_cpp_member(value):
        return ["enum", identity(type(value)), value.name, value.value]  # type: ignore[attr-defined]
    raise OnlyHere(f"an object of type {_type_name(type(value))} has no name across processes")


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
    if "torch" not in sys.modules:  # then no value is an operator, and the CLI must not load torch
        return None
    from npugx_cache.private import runtime

    return runtime.operator_name(value)


def _numpy_identity(value: object) -> Plain | None:
    """Of a ufunc, such as `numpy.sqrt`, or another compiled function; with NumPy's version."""
    if type(value).__module__ != "numpy" or getattr(value, "__module__", None) != "numpy":
        return None
    numpy: Any = sys.modules["numpy"]
    name = getattr(value, "__name__", "")
    if getattr(numpy, name, None) is not value:
        return None
    return ["builtin", "numpy", name, numpy.__version__]


_GROUP = "process group"


def _distributed_identity(value: object) -> Plain | None:
    from npugx_cache.private import process_groups

    if process_groups.is_group(value):
        return [_GROUP, *process_groups.facts_of(value)]
    if not type(value).__module__.startswith("torch.distributed."):
        return None
    from npugx_cache.private import meshes

    try:
        return meshes.facts_of(value)
    except meshes.NoName as error:
        raise NotPortable(str(error)) from None


def _method_identity(value: types.MethodType, depth: int) -> Plain:
    owner = value.__self__
    bound_to = owner if isinstance(owner, (type, types.ModuleType)) else type(owner)
    return ["method", identity(value.__func__, depth + 1), identity(bound_to, depth + 1)]


def _is_cpp_member(value: object) -> bool:
    """Whether the object is a member of an enumeration that pybind11 made, such as SDPBackend."""
    cls: Any = type(value)
    if type(cls).__module__ != _PYBIND or not hasattr(cls, "__members__"):
        return False
    return any(member == value for member in cls.__members__.values())


def _partial_identity(value: partial[Any], depth: int) -> Plain:
    parts = (value.func, value.args, value.keywords)
    return ["partial", *(seal(encode(part, depth + 1)) for part in parts)]


def _type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _class_identity(cls: type) -> Plain:
    if cls is types.NoneType:  # its own module and name lead nowhere
        return ["class", "types", "NoneType"]
    name = name_of(cls)
    if name is not None or is_covered_class(cls):
        return ["class", cls.__module__, name or cls.__qualname__]
    # Two classes made by one function share their qualname, but differ in their bodies.
    return ["class", module_of(cls), cls.__qualname__, class_body_hash(cls)]


def module_of(owner: object) -> str:
    """The module that a class or a function says it is of; "" if it says what is no name."""
    name = getattr(owner, "__module__", None)
    return name if type(name) is str else ""


def is_named(cls: type) -> bool:
    """Whether a name in its module leads to the class; source facts find classes that way."""
    return name_of(cls) is not None or is_covered_class(cls)


def is_covered_class(cls: type) -> bool:
    """Whether a version in the key says what the class is: it is of torch or of Python.

    A class that a call made, such as `dataclasses.make_dataclass`, may have the module of that
    function, and a decorator may give a class the module of another one.
    """
    module = cls.__module__  # `module_of` without the call, because each lookup comes here often
    if type(module) is not str or not is_covered_module(module):
        return False
    if has_name(cls) or not cls.__flags__ & _MADE_BY_PYTHON:
        return True
    members = map(unwrap, vars(cls).copy().values())
    spaces = [each.__globals__ for each in members if isinstance(each, types.FunctionType)]
    homes = [str(space.get("__name__")) for space in spaces]
    return cls.__module__ not in _MAKERS_OF_CLASSES and all(map(is_covered_module, homes))


_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_MAKERS_OF_CLASSES = frozenset({"types", "abc"})
"""Modules with functions that make a class for others, and give it their own module's name."""


def has_name(cls: type) -> bool:
    """Whether the module and the qualified name of a class lead to the class."""
    module = cls.__module__
    if type(module) is not str or "<locals>" in cls.__qualname__:
        return False
    try:
        return look_up(module, cls.__qualname__) is cls
    except NotPortable:
        return False


def name_of(cls: type) -> str | None:
    """The name that leads to a class in its module: its qualname, or else that of a variable.

    A class that a call made often has another name than the variable that holds the class, as in
    `Result = namedtuple("_Result", "x y")`, or the body of another class holds the class. So do
    classes of C++. None if there is no such name.
    """
    if has_name(cls):
        return cls.__qualname__
    module = sys.modules.get(module_of(cls))
    if module is None or "<locals>" in cls.__qualname__:
        return None
    members = vars(module).copy().items()  # in the order of the module: a later alias is no name
    holders = [each for _, each in members if isinstance(each, type) and has_name(each)]
    names = [name for name, each in members if each is cls]
    names += [
        f"{holder.__qualname__}.{name}"
        for holder in holders
        if holder.__module__ == cls.__module__
        for name, each in vars(holder).copy().items()
        if each is cls
    ]
    return names[0] if names else None


_PYBIND = "pybind11_builtins"


def class_body_hash(cls: type) -> str:
    """A hash of what a class defines (names, functions, plain values), its bases and metaclass.

    Plain values count because a trace may read one without a guard, by `super()` or `__class__`.
    """
    kinds = cls.__bases__ if type(cls) is type else (*cls.__bases__, type(cls))
    digest = hashlib.sha256("".join(repr(identity(each)) for each in kinds).encode())
    for name, member in sorted(body_of(cls).items()):
        digest.update(name.encode())
        function = unwrap(member)
        if isinstance(function, types.FunctionType):
            digest.update(code_hash(function.__code__).encode())
        elif isinstance(member, PLAIN_MEMBERS):
            digest.update(stable_text(member).encode())
    return digest.hexdigest()[:32]


PLAIN_MEMBERS = (int, float, str, bytes, bool, tuple, type(None))
"""Members of these types count in the identity of a class that no name leads to, by their value."""


def body_of(cls: type) -> dict[str, Any]:
    """The members of a class by their names, without what Python itself adds when it is asked."""
    return {name: member for name, member in vars(cls).copy().items() if name not in _ADDED}


_ADDED = frozenset({"__slotnames__", "__annotations__", "__annotations_cache__", "__firstlineno__"})
"""By `copy`, by a look at the annotations, or because of the line at which a class begins."""


def has_body(data: Plain) -> bool:
    """Whether an identity is that of a class that no name leads to, and so holds a hash of it."""
    return data[0] == "class" and len(data) == len(("class", "module", "name", "hash"))


def _module_identity(module: types.ModuleType, _: int) -> Plain:
    name: str = module.__name__
    # Namespaces of operators, such as `torch.ops.aten`, are modules that only torch knows.
    if sys.modules.get(name) is not module and not is_covered_module(name):
        raise OnlyHere(f"no name leads to the module {name}: another one has the name, or none")
    return ["module", name]


def _function_identity(function: types.FunctionType, depth: int) -> Plain:
    return [
        "function",
        module if type(module := function.__module__) is str else "",
        function.__qualname__,
        code_hash(function.__code__),
        _encode_captured(function.__defaults__ or (), depth),
        _encode_captured((function.__kwdefaults__ or {}).values(), depth),
        _encode_captured(map(contents, function.__closure__ or ()), depth),
        is_namespace(function.__globals__),
    ]


def is_namespace(space: Mapping[str, object]) -> bool:
    """Whether globals are those of a loaded module, which another process finds by its name.

    Two modules that were loaded from one file have functions of equal code, and other globals.
    """
    name = space.get("__name__")
    if type(name) is not str:
        return False
    module = sys.modules.get(name)
    return (module is not None and vars(module) is space) or is_covered_module(name)


def _encode_captured(values: Any, depth: int) -> list[Plain]:
    """Encode the defaults or the closure of a function.

    A value without a portable form counts by its type only. Texts are sealed, because a captured
    text may be a secret that the traced code did not even read.
    """
    encoded: list[Plain] = []
    for value in values:
        try:
            # + 8: so that functions that capture functions are followed at most three deep
            encoded.append(seal(encode(value, depth + 8)))
        except NotPortable:
            encoded.append(["type", _type_name(type(value))])
    return encoded


_IDENTITIES: tuple[tuple[Any, Callable[[Any, int], Plain]], ...] = (
    (types.ModuleType, _module_identity),
    (enum.Enum, lambda v, d: ["enum", identity(type(v)), v.name, seal(encode(v._value_, d + 1))]),
    (types.GenericAlias, lambda v, _: ["typing", repr(v)]),  # such as list[int]
    (types.UnionType, lambda v, _: ["typing", repr(v)]),  # such as int | None
    (type, lambda v, _: _class_identity(v)),
    (types.FunctionType, _function_identity),
    (types.CodeType, lambda v, _: ["code", code_hash(v)]),
    (types.MethodType, _method_identity),
    (partial, _partial_identity),
    (_BUILTIN_KINDS, _builtin_identity),
)


def resolve(data: Plain) -> Any:
    """The object that an identity names, in modules that are loaded; raises `NotPortable`.

    Never imports a module, because an import would run code that the user did not ask for.
    """
    kind = data[0]
    if kind == "module":
        return _imported_module(data[1])
    if kind in ("class", "function", "builtin"):
        found: Any = _imported_module(data[1])
        for part in data[2].split("."):
            found = getattr(found, part, _ABSENT)
            if found is _ABSENT:
                raise NotPortable(f"{data[1]}.{data[2]} does not exist")
    elif kind == "enum":
        found = _member(resolve(data[1]), data[2])
    elif kind in _RESOLVED:
        found = _RESOLVED[kind](*data[1:])
    elif kind == "method":
        found = getattr(resolve(data[2]), data[1][2].rpartition(".")[2], _ABSENT)
    else:
        raise NotPortable(f"a {kind} can't be looked up by name")
    if found is _ABSENT and kind == "enum":
        what = "is no member, or code of its class (_missing_) makes it"
        raise NotPortable(f"{describe(data)} {what}")
    if found is _ABSENT or identity(found) != data:
        raise NotPortable(f"{describe(data)} is not the one that was recorded")
    return found


_ABSENT = object()


def _member(cls: Any, name: str | None) -> Any:
    """A member of an enumeration, or of a `Flag` several members at once, whose name is `A|B`.

    Python makes these once. Where Python would ask a `_missing_` of the user's there is none,
    because a restore runs no code of the user's.
    """
    members = cls.__members__
    if name in members or not (isinstance(cls, enum.EnumMeta) and issubclass(cls, enum.Flag)):
        return members.get(name, _ABSENT)
    names = name.split("|") if name else []
    is_pythons = getattr(cls._missing_, "__func__", None) is vars(enum.Flag)["_missing_"].__func__
    calls_metaclass = type(cls).__call__ is not enum.EnumMeta.__call__
    if not is_pythons or calls_metaclass or not set(names) <= members.keys():
        return _ABSENT
    return cls(reduce(operator.or_, (members[each]._value_ for each in names), 0))


def resolve_op(namespace: str, name: str, overload: str) -> Any:
    """`torch.ops.<namespace>.<name>.<overload>`; raises `NotPortable` if it is not registered."""
    torch = sys.modules["torch"]
    found = torch.ops
    for part in (namespace, name, overload or "default"):
        found = getattr(found, part, None)
    # `torch.ops` and all below it have attributes that are no operators, such as `load_library`.
    if _operator_identity(found) != ["op", namespace, name, overload or "default"]:
        raise NotPortable(f"operator {namespace}::{name}.{overload} is not registered")
    return found


def _group_of_name(name: str, *_: Plain) -> Any:
    from npugx_cache.private import process_groups

    group = process_groups.find(name)
    if group is None:
        raise NotPortable(f"there is no process group {name!r}")
    return group


def _placement(kind: str, *fields: Any) -> Any:
    from npugx_cache.private import meshes

    try:
        return meshes.placement(kind, *fields)
    except TypeError:
        raise NotPortable(f"there is no placement {kind}") from None


_RESOLVED: dict[str, Callable[..., Any]] = {
    "op": resolve_op,
    _GROUP: _group_of_name,
    "placement": _placement,
}


def _imported_module(name: str) -> types.ModuleType:
    module = sys.modules.get(name)
    if module is None:
        raise NotPortable(f"module {name} is not imported in this process")
    return module


_code_hashes: dict[int, tuple[types.CodeType, str]] = {}
"""By the id of the code: code that is equal may walk a constant set in another order."""


def code_hash(code: types.CodeType) -> str:
    """A hash of what a code object does; its file, lines, own name and addresses don't count."""
    known = _code_hashes.get(id(code))
    if known is None:
        # One repr of all parts is fast; a restart hashes a hundred functions before its first call.
        text = repr(_code_parts(code)).encode()
        known = _code_hashes[id(code)] = code, hashlib.sha256(text).hexdigest()[:32]
    return known[1]


def _code_parts(code: types.CodeType) -> tuple[object, ...]:
    is_class = _FIRST_LINE in code.co_names
    constants = () if is_class else code.co_consts
    return (
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        list(_body_of_class(code)) if is_class else code.co_code,
        code.co_exceptiontable,
        [c if type(c) in _TOLD_BY_REPR else _constant(c) for c in constants],
    )


_FIRST_LINE = "__firstlineno__"
"""A name in every class since Python 3.13: the number of the line in which the class begins."""


def _body_of_class(code: types.CodeType) -> Iterator[object]:
    """The instructions with the constants that they use, but without the class's first line.

    We can't just drop that line from the constants, because an equal number in the body of the
    class is the same constant.
    """
    import dis

    line_is_named = ("STORE_NAME", _FIRST_LINE)
    instructions = list(dis.get_instructions(code))
    for this, following in zip(instructions, [*instructions[1:], None], strict=True):
        named = following is not None and (following.opname, following.argval) == line_is_named
        if named and this.argval == code.co_firstlineno:
            yield "line"
        elif this.opcode in dis.hasconst:
            yield this.opcode, _constant(this.argval)
        elif this.opname != "EXTENDED_ARG":
            yield this.opcode, this.arg


_TOLD_BY_REPR = (str, bytes, int, float, complex, bool, type(None))


def _constant(value: object) -> Plain:
    if isinstance(value, types.CodeType):
        return ["code", code_hash(value)]
    if type(value) is frozenset and all(type(item) in (int, float) for item in value):
        # In the order of a walk, which for numbers is that of the source, in every process.
        return ["in order", list(map(encode, value))]
    try:
        return encode(value)
    except NotPortable:  # a live object that a code generator put among the constants
        return ["type", _type_name(type(value))]
