"""Named tuples, dataclasses and enumerations of numbers, of classes that are made quickly.

`typing.NamedTuple` and `dataclasses.dataclass` write the code of methods as text and compile the
text, which would take a restarted worker as long as the rest of its imports; `enum` takes as long
for thirty members. Here classes share methods that read the names of fields. Dataclasses are always
frozen and have slots. A type checker sees the originals, and functions of `dataclasses`, such as
`replace` and `asdict`, take what is made here.
"""

from __future__ import annotations

import dataclasses
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from dataclasses import dataclass, field, fields, replace
    from enum import IntEnum
    from typing import NamedTuple

__all__ = ["IntEnum", "NamedTuple", "dataclass", "field", "fields", "replace"]

_SET: Callable[[object, str, object], None] = object.__setattr__


def _values(
    owner: str,
    fields: tuple[str, ...],
    defaults: Mapping[str, Any],
    args: tuple[Any, ...],
    named: dict[str, Any],
) -> dict[str, Any]:
    """`named`, with the value of each field that a call gives otherwise. Raises TypeError."""
    if args:
        if len(args) > len(fields):
            raise TypeError(f"{owner}() takes {len(fields)} values, but {len(args)} were given")
        given = dict(zip(fields, args, strict=False))
        for name in named:
            if name in given:
                raise TypeError(f"{owner}() has two values for {name!r}")
        named |= given
    for name in fields:
        if name not in named:
            if name not in defaults:
                raise TypeError(f"{owner}() misses a value for {name!r}")
            default = defaults[name]
            named[name] = (
                _make_default(default) if default.__class__ is dataclasses.Field else default
            )
    if len(named) > len(fields):
        raise TypeError(f"{owner}() has no field {min(named.keys() - set(fields))!r}")
    return named


def _make_default(default: dataclasses.Field[Any]) -> Any:
    make = default.default_factory
    return default.default if make is dataclasses.MISSING else make()


def _text_of_record(name: str, fields: Iterable[str], values: Iterable[Any]) -> str:
    pairs = zip(fields, values, strict=True)
    return f"{name}({', '.join([f'{field}={value!r}' for field, value in pairs])})"


# Named tuples


class _Row(tuple[Any, ...]):
    """What all named tuples have in common."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()
    _length = 0
    _field_defaults: Mapping[str, Any] = {}

    def __new__(cls, *args: Any, **named: Any) -> Self:
        # Too many values or too few, told without a call: a lookup makes a hundred rows.
        if named or args[cls._length :] or not args[cls._length - 1 :]:
            found = _values(cls.__name__, cls._fields, cls._field_defaults, args, named)
            args = tuple([found[name] for name in cls._fields])
        return tuple.__new__(cls, args)

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Self:
        return cls(*values)

    def _replace(self, **changes: Any) -> Self:
        values = [changes.pop(*pair) for pair in zip(self._fields, self, strict=True)]
        if changes:
            raise ValueError(f"Got unexpected field names: {list(changes)!r}")
        return tuple.__new__(type(self), values)

    __replace__ = _replace

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return _text_of_record(type(self).__name__, self._fields, self)


class _RowMaker(type):
    """Makes a named tuple of the body of a class, and leaves no trace of itself in it."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        if not bases:
            return super().__new__(cls, name, bases, body)
        made: Any = type(name, (_Row,), {**body, "__slots__": ()})
        fields = tuple(made.__annotations__)
        made._fields, made._length = fields, len(fields)  # noqa: SLF001 - made here
        made._field_defaults = {field: body[field] for field in fields if field in body}
        for index, field in enumerate(fields):
            setattr(made, field, property(itemgetter(index)))
        return made


# Dataclasses: `__match_args__` names the fields, as in those of the standard library.


class _Described:
    """`__dataclass_fields__` of a record, made when a function of `dataclasses` first reads it."""

    def __get__(self, _: object, owner: Any) -> dict[str, Any]:
        names, defaults = owner.__match_args__, owner._field_defaults
        rows = [(name, Any, defaults[name]) if name in defaults else (name, Any) for name in names]
        original: Any = dataclasses.make_dataclass(owner.__name__, rows, kw_only=True)
        owner.__dataclass_fields__ = original.__dataclass_fields__
        return owner.__dataclass_fields__  # type: ignore[no-any-return]


def _init(self: Any, *args: Any, **named: Any) -> None:
    owner, fields = type(self), self.__match_args__
    if args and owner._kw_only:  # noqa: SLF001 - of a class made here
        raise TypeError(f"{owner.__name__}() takes values by name only")
    if args or named.keys() != owner._field_set:  # noqa: SLF001 - as above
        named = _values(owner.__name__, fields, owner._field_defaults, args, named)
    for name in fields:
        _SET(self, name, named[name])


def _content(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self.__match_args__]


def _restore(self: Any, values: list[Any]) -> None:
    for name, value in zip(self.__match_args__, values, strict=True):
        _SET(self, name, value)


def _equal(self: Any, other: object) -> Any:
    return _content(self) == _content(other) if type(other) is type(self) else NotImplemented


def _refuse(_: object, name: str, *_value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")


def _replace_fields(record: Any, /, **changes: Any) -> Any:
    """As `dataclasses.replace`, for what is made here."""
    unchanged = zip(record.__match_args__, _content(record), strict=True)
    return type(record)(**{**dict(unchanged), **changes})


_METHODS: dict[str, Any] = {
    "__dataclass_fields__": _Described(),
    "__init__": _init,
    "__eq__": _equal,
    "__hash__": lambda self: hash(tuple(_content(self))),
    "__repr__": lambda self: _text_of_record(
        type(self).__qualname__, self.__match_args__, _content(self)
    ),
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__getstate__": _content,
    "__setstate__": _restore,
}


def _is_plain(default: Any) -> bool:
    """Whether records know all that a default of a field asks for."""
    if not isinstance(default, dataclasses.Field):
        return not isinstance(default, (list, dict, set))
    missing = dataclasses.MISSING
    has_default = default.default is not missing or default.default_factory is not missing
    return has_default and (default.init, default.repr, default.compare) == (True, True, True)


def _dataclass(
    *, frozen: bool, slots: bool, kw_only: bool = False, weakref_slot: bool = False
) -> Callable[[Any], Any]:
    if not (frozen and slots):
        raise TypeError("a record is frozen and has slots")

    def make(cls: Any) -> Any:
        own = tuple(cls.__annotations__)
        body = {name: value for name, value in vars(cls).items() if name not in own}
        defaults = {name: vars(cls)[name] for name in own if name in vars(cls)}
        if "__post_init__" in vars(cls) or not all(map(_is_plain, defaults.values())):
            raise TypeError(f"{cls.__name__}: no __post_init__; of a field only its default")
        for name in ("__dict__", "__weakref__"):
            body.pop(name, None)
        fields = (*getattr(cls, "__match_args__", ()), *own)
        made: Any = type(
            cls.__name__,
            cls.__bases__,
            {
                **_METHODS,
                **body,
                "__slots__": (*own, "__weakref__") if weakref_slot else own,
                "__qualname__": cls.__qualname__,
                "__match_args__": fields,
                "_field_set": frozenset(fields),
                "_field_defaults": {**getattr(cls, "_field_defaults", {}), **defaults},
                "_kw_only": kw_only,
            },
        )
        return made

    return make


def _fields(cls: Any) -> tuple[Any, ...]:
    """As `dataclasses.fields`, without types."""
    found = []
    for name in cls.__match_args__:
        default = cls._field_defaults.get(name, dataclasses.MISSING)
        made = default if isinstance(default, dataclasses.Field) else _field(default=default)
        made.name = name
        found.append(made)
    return tuple(found)


_field: Any = dataclasses.field

# Enumerations

_BY_VALUE = "_value2member_map_"  # the name that the standard library uses


class _Numbers(type):
    """Makes a class of named numbers of the body of a class, as `enum.IntEnum` does."""

    __members__: dict[str, Any]

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        if not bases:
            return super().__new__(cls, name, bases, body)
        numbers = {key: value for key, value in body.items() if type(value) is int}
        rest = {key: value for key, value in body.items() if key not in numbers}
        made: Any = super().__new__(cls, name, (int,), {**rest, **_NUMBER})
        made.__members__ = {}
        for key, value in numbers.items():
            member: Any = int.__new__(made, value)
            member.name, member.value = key, value
            setattr(made, key, member)
            made.__members__[key] = member
        members = made.__members__.values()
        setattr(made, _BY_VALUE, {int(member): member for member in members})
        return made

    def __call__(cls: Any, value: object) -> Any:
        try:
            return getattr(cls, _BY_VALUE)[value]
        except KeyError:
            raise ValueError(f"{value!r} is not a valid {cls.__qualname__}") from None

    def __getitem__(cls, name: str) -> Any:
        return cls.__members__[name]

    def __iter__(cls) -> Iterator[Any]:
        return iter(cls.__members__.values())

    def __len__(cls) -> int:
        return len(cls.__members__)

    def __contains__(cls: Any, value: object) -> bool:
        return value in getattr(cls, _BY_VALUE)


_NUMBER: dict[str, Any] = {
    "__repr__": lambda self: f"<{type(self).__name__}.{self.name}: {self.value}>",
    "__str__": int.__repr__,
    "__reduce_ex__": lambda self, _: (type(self), (self.value,)),
}


if not TYPE_CHECKING:
    dataclass, field, fields, replace = _dataclass, dataclasses.field, _fields, _replace_fields

    class NamedTuple(metaclass=_RowMaker):
        """As `typing.NamedTuple`."""

    class IntEnum(metaclass=_Numbers):
        """As `enum.IntEnum`."""
