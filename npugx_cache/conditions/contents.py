"""Reads all that stands under a name: a class with all its members, a table, a function, a value.

Dynamo installs no guards for code that it does not look into. Such code may read all that its
globals and its classes hold, so all of that is a condition. A class that a name leads to is written
by the name, and has a condition of its own.
"""

from __future__ import annotations

import enum
import functools
import logging
import sys
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

from npugx_cache.conditions.data import Check
from npugx_cache.portable import (
    NotPortable,
    Plain,
    body_of,
    code_hash,
    contents,
    digest,
    encode,
    is_covered_class,
    look_up,
)
from npugx_cache.portable.pinned import is_covered_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MAX_VALUES = 20_000


class Contents:
    """All that stands under one value. Raises `NotPortable` for what has no portable form.

    `classes` are those of user code that it names, `codes` is the code of its functions, `body` the
    class that it is itself, `remembering` the functions that keep what they gave
    (`functools.cache`). The other attributes are what `Pinned` compares.
    """

    @classmethod
    def under(cls, module: str, name: str) -> Contents:
        """What a name stands for. A class is read where its own name leads to it."""
        found = look_up(module, name)
        own = (found.__module__, found.__qualname__) if isinstance(found, type) else None
        return cls(found, inside=own == (module, name))

    def __init__(self, value: object, *, inside: bool = True) -> None:
        is_body = inside and isinstance(value, type) and not is_covered_class(value)
        self.classes: dict[type, None] = {}
        self.codes: dict[types.CodeType, None] = {}
        self.body: type | None = value if is_body else None  # type: ignore[assignment]
        self.functions: list[types.FunctionType] = []
        self.containers: list[Any] = []
        self.slots: list[tuple[object, str]] = []
        self.objects: list[object] = []
        self.remembering: list[Any] = []
        self._known: dict[int, tuple[int, object]] = {}
        self.text = self._of(value) if self.body is None else self._class_body(self.body)

    def hash(self) -> str:
        return digest([repr(self.text)])[:32]

    def _of(self, value: Any) -> Plain:
        kind = type(value)
        if kind in _SCALARS:
            return encode(value)
        if (known := self._known.get(id(value))) is not None:
            return ["again", known[0]]
        if len(self._known) > _MAX_VALUES:
            raise NotPortable("it leads to too many objects")
        self._known[id(value)] = len(self._known), value
        for kinds, read in _READERS:
            if isinstance(value, kinds):
                return read(self, value)
        return self._object(value)

    def _all(self, values: Iterable[Any]) -> list[Plain]:
        return [self._of(each) for each in values]

    # --- containers

    def _dict(self, value: Any) -> Plain:
        kind = _plain_kind(value, (dict, OrderedDict, defaultdict, Counter))
        self.containers.append(value)
        made = self._all([value.default_factory]) if type(value) is defaultdict else []
        return [kind, *made, [self._all(pair) for pair in list(value.items())]]

    def _list(self, value: Any) -> Plain:
        kind = _plain_kind(value, (list, deque))
        self.containers.append(value)
        return [kind, self._all(list(value))]

    def _tuple(self, value: Any) -> Plain:
        named = [] if type(value) is tuple else self._all([type(value)])
        return ["tuple", *named, self._all(tuple.__iter__(value))]

    def _set(self, value: Any) -> Plain:
        kind = _plain_kind(value, (set, frozenset))
        self.containers.append(value)
        return [kind, self._all(sorted(value, key=lambda each: repr(encode(each))))]

    # --- code

    def _function(self, value: types.FunctionType) -> Plain:
        self.functions.append(value)
        self.codes[value.__code__] = None
        is_covered = is_covered_module(str(value.__globals__.get("__name__")))
        held = [value.__defaults__, value.__kwdefaults__, *map(contents, value.__closure__ or ())]
        return [
            *("function", value.__module__, value.__qualname__, code_hash(value.__code__)),
            self._all(held if is_covered else [*held, vars(value)]),
        ]

    def _builtin(self, value: types.BuiltinFunctionType) -> Plain:
        """A function in C; what the method of an object does depends on the object."""
        owner = value.__self__
        if owner is None or isinstance(owner, (type, types.ModuleType)):
            return encode(value)
        return ["method", value.__qualname__, self._of(owner)]

    def _wrapping(self, value: Any) -> Plain:
        """A method, a descriptor or a partial."""
        parts = [(name, getattr(value, name)) for name in _PARTS if hasattr(value, name)]
        return [type(value).__qualname__, [[name, self._of(part)] for name, part in parts]]

    # --- classes and objects

    def _class(self, value: type) -> Plain:
        if not is_covered_class(value):
            if not _is_found(value):
                raise NotPortable(f"no name leads to the class {value.__qualname__}")
            self.classes[value] = None
        return ["class", value.__module__, value.__qualname__]

    def _class_body(self, value: type) -> Plain:
        """A class of user code with all that is in it. Its bases have conditions of their own."""
        made = [value.__qualname__, self._all((type(value), *value.__mro__))]
        members = {n: m for n, m in sorted(body_of(value).items()) if n not in _NOT_READ}
        if isinstance(value, enum.EnumMeta):
            named: dict[str, Any] = dict(value.__members__)
            made.append([[name, self._of(each._value_)] for name, each in named.items()])
            members = {n: m for n, m in members.items() if isinstance(m, _CODE)}
        for name, member in members.items():
            try:
                made.append([name, self._member(name, member)])
            except NotPortable as error:
                raise NotPortable(f"{value.__qualname__}.{name}: {error}") from None
        return made

    def _member(self, name: str, member: Any) -> Plain:
        if name == "__dataclass_params__":
            return repr(member)
        if name != "__dataclass_fields__":
            return self._of(member)
        rows = [(f.name, f.default, f.default_factory, f.kw_only) for f in member.values()]
        return [self._all(row) for row in rows]

    def _enum(self, value: enum.Enum) -> Plain:
        return ["enum", self._of(type(value)), value.name]

    def _object(self, value: Any) -> Plain:
        kind, torch = type(value), sys.modules["torch"]
        if isinstance(value, torch.Tensor):
            raise NotPortable("a tensor, whose values no condition holds")
        if kind in (torch.no_grad, torch.enable_grad, torch.inference_mode):  # of a decorator
            return ["mode", kind.__qualname__, self._of(getattr(value, "mode", None))]
        if is_covered_class(kind):
            # Objects that stand for a missing value, locks, and fields of a tuple hold nothing.
            nothing = kind.__module__ == "dataclasses" or isinstance(value, _NOTHING)
            if isinstance(value, _REMEMBERS):
                self.remembering.append(value)
                return ["remembers", self._of(value.__wrapped__)]
            return ["object", kind.__qualname__] if nothing else encode(value)
        if _holds_more(kind):
            raise NotPortable(f"an object of type {kind.__qualname__} does not show what it holds")
        self.objects.append(value)
        made = [self._of(kind), *self._all([vars(value)] if hasattr(value, "__dict__") else [])]
        for base in kind.__mro__:
            for name, member in vars(base).copy().items():
                if isinstance(member, types.MemberDescriptorType) and hasattr(value, name):
                    self.slots.append((value, name))
                    made.append([name, self._of(getattr(value, name))])
        return ["object", made]


_SCALARS = frozenset({*(str, bytes, int, float, complex, bool, type(None), type(Ellipsis), range)})
_NOTHING = (
    *(type(threading.Lock()), type(threading.RLock()), logging.Logger),
    type(vars(Check)["node"]),  # what reads a field of a named tuple
)
_REMEMBERS = type(functools.lru_cache(len))
_CODE = (types.FunctionType, staticmethod, classmethod, property)
_PARTS = (*("__func__", "__self__", "fget", "fset", "fdel", "func", "args", "keywords"),)
_NOT_READ = frozenset(
    {
        *("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "_abc_impl"),
        *("__static_attributes__", "__annotate__", "__annotate_func__"),
    }
)
"""Members of a class that Python or `abc` adds."""

_READERS: tuple[tuple[Any, Callable[[Contents, Any], Plain]], ...] = (
    (types.FunctionType, Contents._function),  # noqa: SLF001
    (types.BuiltinFunctionType, Contents._builtin),  # noqa: SLF001
    (type, Contents._class),  # noqa: SLF001
    (types.ModuleType, lambda _, value: ["module", value.__name__]),
    (enum.Enum, Contents._enum),  # noqa: SLF001
    (
        (
            *(types.MethodType, staticmethod, classmethod, property),
            *(functools.partial, functools.cached_property),
        ),
        Contents._wrapping,  # noqa: SLF001
    ),
    (dict, Contents._dict),  # noqa: SLF001
    ((list, deque), Contents._list),  # noqa: SLF001
    (tuple, Contents._tuple),  # noqa: SLF001
    ((set, frozenset), Contents._set),  # noqa: SLF001
)


def _plain_kind(value: object, kinds: tuple[type, ...]) -> str:
    if type(value) not in kinds:
        name = type(value).__qualname__
        raise NotPortable(f"an object of type {name} may hold more than its elements")
    return type(value).__qualname__


def _is_found(cls: type) -> bool:
    try:
        return look_up(cls.__module__, cls.__qualname__) is cls
    except NotPortable:
        return False


def _holds_more(kind: type) -> bool:
    """Whether a base made in C may keep something in an object that Python does not show."""
    made_in_c = (base for base in kind.__mro__ if not base.__flags__ & _MADE_BY_PYTHON)
    return any(base is not object for base in made_in_c)


_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class Pinned:
    """What was read of some contents, compared by identity. Keeps everything alive."""

    def __init__(self, read: Iterable[Contents]) -> None:
        whole = list(read)
        functions = {id(each): each for one in whole for each in one.functions}
        containers = {id(each): each for one in whole for each in one.containers}
        self._functions = list(functions.values())
        self._cells = [cell for each in self._functions for cell in each.__closure__ or ()]
        self._objects = [each for one in whole for each in one.objects]
        self._slots = [slot for one in whole for slot in one.slots]
        self._empty = [each for each in containers.values() if not each]
        self._filled = [(each, _elements(each)) for each in containers.values() if each]
        self._was = self._now()

    def _now(self) -> list[Any]:
        found: list[Any] = []
        for part in _OF_FUNCTIONS:
            found += map(part, self._functions)
        found += map(contents, self._cells)
        found += map(type, self._objects)
        found += [getattr(*slot, None) for slot in self._slots]
        return found

    def is_unchanged(self) -> bool:
        return (
            all(map(is_, self._now(), self._was))
            and not any(self._empty)
            and all(_is_same(elements, _elements(each)) for each, elements in self._filled)
        )


_OF_FUNCTIONS = tuple(
    attrgetter(f"__{name}__") for name in ("code", "defaults", "kwdefaults", "dict")
)


def _elements(container: Any) -> list[Any]:
    if isinstance(container, dict):
        return [*container, *container.values()]
    return list(container)


def _is_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))
