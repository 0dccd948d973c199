"""The passes of an engine as canonical text: what their part of a key is made of.

A pass is an object with state, and its patterns close over further objects. The text has the code
that may run, and the settings that this code may read: attributes whose names no such code mentions
can't matter, such as the engine's whole configuration that only a constructor looked at. What no
text can cover is refused. Code of torch and Python is covered by their versions.
"""

from __future__ import annotations

import dis
import enum
import logging
import sys
import types
from collections import OrderedDict, defaultdict
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npugx_cache.portable import (
    NotPortable,
    all_code,
    code_hash,
    contents,
    digest,
    encode,
    is_covered_class,
    module_of,
)
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.private import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis))
_BY_NAME_ALONE = frozenset(
    {
        *("__dict__", "__getattr__", "__getattribute__", "asdict", "astuple", "attrgetter", "copy"),
        *("deepcopy", "dir", "fields", "format", "format_map", "getattr", "getattr_static"),
        *("getmembers", "globals", "locals", "methodcaller", "vars"),
    }
)
"""Names with which code reads what it does not name: all settings count then."""
_READERS = frozenset({"copy", "dataclasses", "inspect", "json", "pickle", "pprint"})
"""Modules whose functions do so."""
_OUTSIDE = frozenset(
    {
        *("environ", "environb", "getenv", "getenvb", "open", "read_text", "read_bytes"),
        *("__import__", "import_module", "eval", "exec", "get_rank", "get_world_size"),
    }
)
"""Names with which code asks for what is in no setting: such code is refused."""
_HEAP_TYPE, _IMPORT, _MATCH = 1 << 9, dis.opmap["IMPORT_NAME"], dis.opmap["MATCH_CLASS"]
_CONTAINERS = frozenset({list, dict, defaultdict, OrderedDict})
_WRAPPED: dict[type, Callable[[Any], Any]] = {
    types.MethodType: lambda method: (method.__func__, method.__self__),
    partial: lambda given: (given.func, given.args, given.keywords),
    type(cache(len)): lambda remembering: remembering.__wrapped__,
    types.ModuleType: lambda module: module.__name__,
    logging.Logger: lambda logger: logger.name,
}
"""What stands for a value of these types."""
_MOST_OF_A_TENSOR = 1 << 16
_SIZE_WITHOUT_STATE = object.__basicsize__ + 8
"""Of an object whose state is all in its `__dict__`: it may have a list of weak references."""


_guess: frozenset[str] = frozenset()
"""The names that the code of the last passes mentions. The pieces of a model have the same passes,
and one walk with the right names is enough."""


def _guessed(root: object) -> _Walk | None:
    """The walk with the names of the last passes, if it comes to these names again."""
    try:
        walk = _walked(root, _guess)
    except NotPortable:  # of what is read under a name that this code does not mention
        return None
    return walk if walk.mentioned == _guess else None


def _walked_from_no_name(root: object) -> _Walk:
    global _guess  # noqa: PLW0603 - a guess, which each use of it checks
    names: frozenset[str] = frozenset()
    while not (walk := _walked(root, names)).mentioned <= names:
        names |= walk.mentioned  # code mentions names, and under names more code is found
    _guess = names
    return walk


def _walked(root: object, names: frozenset[str]) -> _Walk:
    walk = _Walk(names)
    walk.add(root, type(root).__name__)
    return walk


class PassText:
    """The text of a pass as it is now, as a digest; raises `NotPortable`, with the place."""

    def __init__(self, root: object) -> None:
        walk = _guessed(root) or _walked_from_no_name(root)
        self.digest = digest(walk.rows)
        self._state = [(held, _items_of(held.items)) for held in walk.held]

    def put_back(self) -> None:
        """Undo what a run has left on the pass, such as a count or a time.

        A restored graph runs no pass, so what a pass keeps of one graph must not count for the
        next. Raises `NotPortable` where a run has left more than numbers and texts.
        """
        left = None
        for held, before in self._state:
            now = _items_of(held.items)
            for key in before.keys() | now.keys():
                was, is_ = before.get(key), now.get(key)
                if was is is_ or not held.counts(key):
                    continue
                is_plain = {type(was), type(is_)} <= {*_PLAIN} or held.is_of_torch
                if isinstance(held.items, list) or not is_plain:
                    left = f"a run of the passes changes {key} of {held.where}"
                elif key in before:
                    held.items[key] = was
                else:
                    del held.items[key]
        if left is not None:
            raise NotPortable(left)


class _Held(NamedTuple):
    """A dict or a list that a pass reaches. `counts` says of which keys.

    `is_of_torch`: a function of torch keeps it for itself, such as patterns for one kind of input.
    """

    where: str
    items: Any
    counts: Callable[[Any], bool]
    is_of_torch: bool


def _items_of(held: Any) -> dict[Any, Any]:
    return dict(enumerate(held)) if isinstance(held, (list, tuple)) else dict(held)


class _Walk:
    """`known` are the names that code mentions, as far as it was found before.

    `held` are the dicts and lists that were found.
    """

    def __init__(self, known: frozenset[str]) -> None:
        self._known = known
        self._all_count = not known.isdisjoint(_BY_NAME_ALONE)
        self._seen: dict[int, int] = {}
        self._alive: list[object] = []  # so that no id is met twice
        self.mentioned: set[str] = set()
        self.rows: list[str] = []
        self.held: list[_Held] = []
        self._in_torch = False

    def add(self, value: Any, where: str) -> None:
        kind = type(value)
        if kind in _PLAIN or runtime.operator_name(value) is not None:
            self.rows.append(repr(encode(value)))
        elif kind is tuple:
            self._add_items(value, where)
        elif id(value) in self._seen:
            self.rows.append(f"same {self._seen[id(value)]}")
        else:
            self._seen[id(value)] = len(self._seen)
            self._alive.append(value)
            self.rows.append(f"{kind.__module__}.{kind.__qualname__}")
            self._add_object(value, kind, where)

    def _add_object(self, value: Any, kind: type, where: str) -> None:
        if isinstance(value, torch.Tensor):
            self._add_tensor(value, where, by_value=True)
        elif kind is types.FunctionType:
            self._add_function(value, where)
        elif isinstance(value, type):
            self._add_class(value, where, is_called=True)
        elif kind in _WRAPPED:
            self.add(_WRAPPED[kind](value), where)
        elif kind in _CONTAINERS:
            self.held.append(_Held(where, value, _each, self._in_torch))
            self._add_items(value, where)
        elif _has_state_of_its_own(kind) or isinstance(value, enum.Enum):
            self._add_encoded(value, where)
        elif is_covered_class(kind):
            self._add_state(value, where, _each)
        else:
            outside, self._in_torch = self._in_torch, False
            self._add_class(kind, where, is_called=False)
            has_readers = any(map(_reads_attributes, kind.__mro__))
            self._add_state(value, where, _each if has_readers else self._may_be_read)
            self._in_torch = outside

    def _add_encoded(self, value: object, where: str) -> None:
        """Sets, members of enumerations, dtypes, operators and other values that have encodings."""
        try:
            self.rows.append(repr(encode(value)))
        except (NotPortable, ValueError) as error:
            raise NotPortable(f"{where}: {error}") from None

    def _add_items(self, values: Any, where: str) -> None:
        if not isinstance(values, (tuple, list)):
            self.add(getattr(values, "default_factory", None), where)
            self.rows.append(repr([repr(key) for key in values if type(key) in _PLAIN]))
            keys = [key for key in values if type(key) not in _PLAIN]
            self._add_items(keys, where)
        for index, each in _items_of(values).items():
            self.add(each, f"{where}[{index!r}]")
        self.rows.append("end")

    def _add_state(self, value: Any, where: str, counts: Callable[[Any], bool]) -> None:
        own = getattr(value, "__dict__", {})
        self.held.append(_Held(where, own, counts, self._in_torch))
        slots = {name: getattr(value, name) for name in _slots(type(value)) if hasattr(value, name)}
        self._add_named({**slots, **own}, where, counts)

    def _add_named(self, space: Any, where: str, counts: Callable[[Any], bool]) -> None:
        for name in sorted(filter(counts, space)):
            self.rows.append(name)
            self.add(space[name], f"{where}.{name}")

    def _may_be_read(self, name: str) -> bool:
        return self._all_count or name in self._known

    def _add_tensor(self, value: torch.Tensor, where: str, *, by_value: bool) -> None:
        layout = [value.dtype, tuple(map(str, value.shape)), value.device.type, str(value.layout)]
        self.rows.append(repr([*map(str, layout)]))
        if by_value and not runtime.is_fake(value):
            if not runtime.is_plain(value) or value.numel() > _MOST_OF_A_TENSOR:
                raise NotPortable(f"{where} is a tensor whose values can't be compared")
            self.rows.append(repr(value.detach().cpu().tolist()))

    # --- code

    def _add_function(self, function: types.FunctionType, where: str) -> None:
        module = module_of(function)
        self.rows.append(f"{module}.{function.__qualname__}")
        is_covered = is_covered_module(module)
        if module.startswith("pydantic."):  # checks what an object of the engine is made of
            self.rows.append(str(vars(sys.modules["pydantic"]).get("__version__")))
        elif not is_covered:
            self.rows.append(code_hash(function.__code__))
            self._add_names(function)
            self.add((function.__defaults__, function.__kwdefaults__), where)
            self._add_named(vars(function), where, self._may_be_read)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for free, cell in cells:
            inside = contents(cell)
            if is_covered and free == "example_inputs":  # torch looks at their kinds alone
                for each in inside if isinstance(inside, (list, tuple)) else (inside,):
                    if isinstance(each, torch.Tensor):
                        self._add_tensor(each, where, by_value=False)
                    else:
                        self.add(each, where)
            else:
                self.rows.append(free)
                outside, self._in_torch = self._in_torch, is_covered
                self.add(inside, f"{free} of {function.__qualname__}")
                self._in_torch = outside

    def _add_names(self, function: types.FunctionType) -> None:
        """The names that a function mentions, and what stands under them in its module."""
        codes, space = list(all_code(function.__code__)), function.__globals__
        names = sorted({name for code in codes for name in code.co_names})
        if outside := sorted(_OUTSIDE.intersection(names)):
            raise NotPortable(f"{function.__qualname__} asks for {outside[0]}")
        texts = [c for each in codes for c in each.co_consts if isinstance(c, str)]
        self.mentioned.update(names, filter(str.isidentifier, texts))
        modules = {getattr(space.get(name), "__module__", name) for name in names}
        if modules & _READERS or any(_MATCH in code.co_code[::2] for code in codes):
            self.mentioned.add("vars")
        imported = [module for code in codes for module in _imported_by(code, space)]
        for name in names:
            if name in space:
                self.rows.append(name)
                self.add(space[name], f"{module_of(function)}.{name}")
        for module in [*imported, *(space.get(name) for name in names)]:
            if isinstance(module, types.ModuleType):
                for name in filter(partial(_is_in, module), names):
                    self.rows.append(f"{module.__name__}.{name}")
                    self.add(getattr(module, name), f"{module.__name__}.{name}")

    def _add_class(self, cls: type, where: str, *, is_called: bool) -> None:
        """A class by its code that may run. `is_called`: code mentions it, and may make objects.

        Otherwise its constructor has run, and shows in the state that it left.
        """
        self.rows.append(f"class {cls.__module__}.{cls.__qualname__}")
        if not is_covered_class(type(cls)):
            self.add(type(cls), where)
        for base in cls.__mro__:
            if is_covered_class(base):
                continue
            self.rows.append(base.__qualname__)
            for name, member in sorted(vars(base).items()):
                functions = _functions_of(member)
                is_special = name.startswith("__") and name.endswith("__")  # Python calls these
                if functions and name in {"__init__", "__new__"} and not is_called:
                    self.rows += [name, *(code_hash(each.__code__) for each in functions)]
                elif bool(functions) if is_special else self._may_be_read(name):
                    self.rows.append(name)
                    for each in functions or [member]:
                        self.add(each, f"{where}.{name}")


def _is_in(module: types.ModuleType, name: str) -> bool:
    """Whether a module has a name that counts. A module may compute names, as vLLM's settings are.

    Of torch and Python only functions count that somebody else has put there.
    """
    if is_covered_module(module.__name__):
        value = vars(module).get(name)
        return isinstance(value, types.FunctionType) and not is_covered_module(module_of(value))
    return hasattr(module, name) if "__getattr__" in vars(module) else name in vars(module)


def _imported_by(code: types.CodeType, space: dict[str, Any]) -> Iterator[types.ModuleType]:
    """The modules of user code that code imports in its body; raises `NotPortable`."""
    if _IMPORT not in code.co_code[::2]:
        return
    package = str(space.get("__package__") or "").split(".")
    for name in (each.argval for each in dis.get_instructions(code) if each.opcode == _IMPORT):
        above = [".".join(package[:depth]) for depth in range(len(package), 0, -1)]
        found = [name, *(f"{each}.{name}".rstrip(".") for each in above)]
        module = next((sys.modules[each] for each in found if each in sys.modules), None)
        if module is None:
            raise NotPortable(f"{code.co_qualname} imports {name}, which is not loaded yet")
        yield module


def _each(_: object) -> bool:
    return True


def _functions_of(member: Any) -> list[types.FunctionType]:
    """The functions of a method or a property; [] for what may have state beside them."""
    kind = type(member)
    found = [member]
    if kind in (staticmethod, classmethod):
        found = [member.__func__]
    elif kind is cached_property:
        found = [member.func]
    elif kind is property:
        found = [each for each in (member.fget, member.fset, member.fdel) if each is not None]
    return found if {*map(type, found)} == {types.FunctionType} else []


def _reads_attributes(base: type) -> bool:
    """Whether a class of torch or Python has methods, which may read attributes of an object."""
    if base is object or base.__module__ in {"abc", "typing"} or not is_covered_class(base):
        return False
    functions = [each for member in vars(base).values() for each in _functions_of(member)]
    return any(each.__code__.co_names for each in functions)


def _slots(kind: type) -> list[str]:
    return [name for base in kind.__mro__ for name in vars(base).get("__slots__", ())]


def _has_state_of_its_own(kind: type) -> bool:
    """Whether objects of a type have state that is neither in their `__dict__` nor in slots."""
    made_in_python = all(base.__flags__ & _HEAP_TYPE for base in kind.__mro__[:-1])
    size = _SIZE_WITHOUT_STATE + 8 * len(_slots(kind))
    return kind is object or not made_in_python or kind.__basicsize__ > size
