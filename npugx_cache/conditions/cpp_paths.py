"""Builds a C++ guard manager for each path of a guard tree.

A manager must read exactly what `evaluate.py` reads. Where torch's accessor reads something else
for some type, a guard pins the type, or the path is left to Python.
"""

from __future__ import annotations

import sys
import types
from collections import OrderedDict
from itertools import chain, starmap
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.conditions.code_watch import ABSENT, Row
from npugx_cache.conditions.data import Conditions, Step
from npugx_cache.portable import decode, is_named
from npugx_cache.private import guard_managers
from npugx_cache.private.fx import without_fx
from npugx_cache.private.guard_managers import REASON

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npugx_cache.conditions.evaluate import Scope

    Manager = Any

DICTS = (dict, OrderedDict)
SEQUENCES = (list, tuple)

_SCALARS = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.layout)
_NESTED_FUNCTIONS = 3
CHILDREN = ("_parameters", "_buffers", "_modules")
"""Where `nn.Module.__getattr__` looks, in its order."""


def _given_by_torch() -> Any:
    found: Any = without_fx(torch.nn.Module.__getattr__)
    home = vars(sys.modules[torch.nn.Module.__module__])
    is_given = type(found) is types.FunctionType and found.__globals__ is home
    return found if is_given and found.__code__.co_qualname == "Module.__getattr__" else None


MODULE_GETATTR = _given_by_torch()
"""The function that torch looks up children of a module with.

None if somebody put another function in its place before this import.
"""


def gives_children(getattr_of_class: object) -> bool:
    """Whether the `__getattr__` of a class is torch's own, which looks in CHILDREN alone."""
    if getattr_of_class is not MODULE_GETATTR:  # another thread may trace by torch.fx
        getattr_of_class = without_fx(getattr_of_class)
    return getattr_of_class is MODULE_GETATTR is not None


class LeftToPython(Exception):
    """C++ has no manager or guard with exactly this meaning, so Python makes the check."""


class PlainReads:
    """Which attributes are read from an object's own dict, or a module's child from its dicts.

    That is right for as long as no class gives the names another meaning: `shadows` are rows for
    `SealedNames`, which watch the classes.
    """

    def __init__(self) -> None:
        self.shadows: list[Row] = []
        self._mros: dict[type, tuple[type, ...]] = {}
        self._plain: dict[tuple[type, str], bool] = {}
        self._dicts: dict[type, bool] = {}

    def past_getattr(self, cls: type, name: str) -> bool:
        """Whether a name of an object can be read from its dict, or of a module from its dicts."""
        known = self._plain.get((cls, name))
        if known is None:
            # Before the question, so that what is patched meanwhile is seen as a change.
            self._mros.setdefault(cls, cls.__mro__)
            rows = _rows(cls, ("__getattr__", "__getattribute__", name))
            plain: Any = cls
            known = self._plain[cls, name] = (
                plain.__getattribute__ is object.__getattribute__
                and getattr(plain, "__getattr__", None) in _GETATTR
                and not any(name in vars(base) for base in cls.__mro__)
            )
            self.shadows += rows if known else ()
        return known

    def have_bases(self) -> bool:
        """Whether the classes have the bases that they had: `SealedNames` watch those alone."""
        return all(map(is_, map(_MRO, self._mros), self._mros.values()))

    def has_plain_dict(self, cls: type) -> bool:
        """Whether the `__dict__` of an object is where Python keeps the object's attributes."""
        known = self._dicts.get(cls)
        if known is None:
            self._mros.setdefault(cls, cls.__mro__)
            rows = _rows(cls, ("__dict__",))
            given = types.GetSetDescriptorType, type(ABSENT)
            known = self._dicts[cls] = all(type(row["__dict__"]) in given for _, row in rows)
            self.shadows += rows if known else ()
        return known


def _rows(cls: type, names: tuple[str, ...]) -> list[Row]:
    return [(base, {name: vars(base).get(name, ABSENT) for name in names}) for base in cls.__mro__]


class PinnedFunctions:
    """Functions that are compared by identity, and all that their identity is made of.

    Each part of a function can be edited in place, and so can what a cell holds. Keeps all of them.
    """

    def __init__(self) -> None:
        self._functions: dict[int, types.FunctionType] = {}
        self._parts: list[object] = []
        self._cells: list[types.CellType] = []
        self._contents: list[object] = []
        self._keywords: list[tuple[dict[str, object], dict[str, object]]] = []
        """Dicts of keyword defaults, and what each had."""

    def add(self, function: types.FunctionType) -> None:
        if id(function) in self._functions:  # it may be among what it carries itself
            return
        self._functions[id(function)] = function
        self._parts += _PARTS(function)
        cells = function.__closure__ or ()
        contents = [cell.cell_contents for cell in cells]
        self._cells += cells
        self._contents += contents
        keywords = function.__kwdefaults__ or {}
        if keywords:
            self._keywords.append((keywords, dict(keywords)))
        for carried in (*(function.__defaults__ or ()), *contents, *keywords.values()):
            if isinstance(carried, types.FunctionType):
                self.add(carried)

    def is_unchanged(self) -> bool:
        """Raises ValueError if a cell is empty by now."""
        if not self._parts:
            return True
        now = chain.from_iterable(map(_PARTS, self._functions.values()))
        return (
            all(map(is_, now, self._parts))
            and (not self._cells or all(map(is_, map(_CONTENT, self._cells), self._contents)))
            and (not self._keywords or all(starmap(_has_the_same, self._keywords)))
        )


def _has_the_same(now: dict[str, object], before: dict[str, object]) -> bool:
    return list(now) == list(before) and all(map(is_, now.values(), before.values()))


_PARTS: Callable[[types.FunctionType], tuple[object, ...]] = attrgetter(
    "__module__", "__qualname__", "__code__", "__defaults__", "__kwdefaults__", "__closure__"
)
_CONTENT, _MRO = attrgetter("cell_contents"), attrgetter("__mro__")

_GETATTR = (None, MODULE_GETATTR)


class Managers:
    """Makes the manager of a node when it is first asked for, and those of its ancestors.

    `reads` says which children of modules are read from the module's dicts. `keep` holds what
    guards compare by address; `kind` is what torch wants to know of a manager it makes.
    """

    def __init__(
        self,
        tree: Conditions,
        values: Sequence[Any],
        scope: Scope,
        reads: PlainReads,
        manager_type: object,
    ) -> None:
        self.root = guard_managers.RootGuardManager()
        self.values = values
        self._reads = reads
        roots = {"modules": sys.modules, "globals": scope.frame_globals}
        self.keep: list[object] = [roots]
        self.kind = manager_type
        self.tree, self._frame_globals = tree, scope.frame_globals
        self._locals = {name: (name, place) for place, name in enumerate(scope.frame_locals)}
        above = self.root.globals_dict_manager(roots, "roots", roots, manager_type)
        self._modules = self.item(above, "modules", sys.modules, "sys.modules")
        self._globals = self.item(above, "globals", scope.frame_globals, "globals")
        self.functions = PinnedFunctions()
        self._made: dict[int, Manager] = {}
        self._dicts: dict[int, Manager] = {}
        self._tables: dict[tuple[int, str], Manager] = {}
        self._pinned: set[int] = set()

    def of(self, node: int) -> Manager:
        """The manager of a node; raises `LeftToPython`."""
        made = self._made.get(node)
        if made is None:
            make = _MAKERS.get(self.tree.steps[node])
            if make is None:
                raise LeftToPython("step")
            made = self._made[node] = make(self, node, self.tree.args[node])
        return made

    def parent(self, node: int) -> int:
        return self.tree.parents[node]

    def pin_type(self, node: int) -> None:
        """Guard that the object has its live type, so that later accessors are right."""
        if node not in self._pinned:
            self._pinned.add(node)
            self.guard_type(self.of(node), type(self.values[node]))

    def guard_type(self, manager: Manager, kind: type) -> None:
        self.keep.append(kind)
        manager.add_type_match_guard(id(kind), *REASON)

    def guard_identity(self, manager: Manager, value: object) -> None:
        self.keep.append(value)
        manager.add_id_match_guard(id(value), *REASON)

    def pin_objects(self, nodes: Sequence[int]) -> bool:
        """Guard that these are the live objects, without keeping them; whether C++ can."""
        try:
            for node in nodes:
                self.pin_type(node)
                self.of(node).add_id_match_guard(id(self.values[node]), *REASON)
        except LeftToPython:
            return False
        return True

    def pin_identity(self, node: int) -> None:
        """Guard that it is the live object, and that its portable name stays; `LeftToPython`."""
        manager, value = self.of(node), self.values[node]
        if not self.keeps_name(value):
            raise LeftToPython("identity")
        self.guard_identity(manager, value)

    def keeps_name(self, value: object) -> bool:
        """Whether an object's portable name stays. From now on a function is watched for that."""
        if not isinstance(value, types.FunctionType):
            return is_fixed(value)
        if not _is_pinnable(value):  # with mutable defaults or free variables
            return False
        self.functions.add(value)
        return True

    def instance_dict(self, node: int) -> Manager:
        """The manager of an object's `__dict__`; raises `LeftToPython` where that is no dict."""
        made = self._dicts.get(node)
        if made is None:
            value = self.values[node]
            live = getattr(value, "__dict__", None)
            if type(live) is not dict or isinstance(value, (type, torch.Tensor)):
                raise LeftToPython("__dict__")
            made = self.of(node).get_generic_dict_manager(f"{node}.__dict__", live, self.kind)
            self._dicts[node] = made
        return made

    def attribute(self, manager: Manager, name: str, value: object, source: str) -> Manager:
        return manager.getattr_manager(name, source, value, self.kind)

    def item(self, manager: Manager, key: object, value: object, source: str) -> Manager:
        """The value under a key of a dict, past overrides of `__getitem__`."""
        return manager.dict_getitem_manager(key, source, value, self.kind)

    def element(self, manager: Manager, index: object, value: object, source: str) -> Manager:
        return manager.getitem_manager(index, source, value, self.kind)

    # --- roots

    def _local(self, node: int, name: Any) -> Manager:
        place = self._locals[name]
        return self.root.framelocals_manager(place, str(node), self.values[node], self.kind)

    def _global(self, node: int, name: Any) -> Manager:
        return self.item(self._globals, name, self.values[node], str(node))

    def _module(self, node: int, name: Any) -> Manager:
        return self.item(self._modules, name, self.values[node], str(node))

    def _namespace(self, node: int, name: Any) -> Manager:
        module = self.item(self._modules, name, sys.modules[name], f"{node}.module")
        return self.attribute(module, "__dict__", self.values[node], str(node))

    def _builtins(self, node: int, _: Any) -> Manager:
        value, live = self.values[node], self._frame_globals["__builtins__"]
        if live is value:
            return self.item(self._globals, "__builtins__", value, str(node))
        module = self.item(self._globals, "__builtins__", live, f"{node}.module")
        return self.attribute(module, "__dict__", value, str(node))

    # --- attributes

    def _attr(self, node: int, name: Any) -> Manager:
        found = self._of_module(node, name)
        if found is not None:
            return found
        parent = self.of(self.parent(node))
        return self.attribute(parent, name, self.values[node], str(node))

    def _of_module(self, node: int, name: str) -> Manager | None:
        """An attribute of an `nn.Module`, from the dict that holds it; None for any other."""
        parent, value = self.parent(node), self.values[node]
        module = self.values[parent]
        if not isinstance(module, torch.nn.Module):
            return None
        if not self._reads.past_getattr(type(module), name):
            return None
        self.pin_type(parent)
        if name in vars(module):
            return self.item(self.instance_dict(parent), name, value, str(node))
        return self._child(parent, name, value, str(node))

    def _child(self, parent: int, name: str, value: object, source: str) -> Manager | None:
        space = vars(self.values[parent])
        place = next((t for t in CHILDREN if name in space.get(t, ())), None)
        if place is None or any(type(space.get(table)) not in DICTS for table in CHILDREN):
            return None
        self._not_before(parent, name, CHILDREN[: CHILDREN.index(place)])
        return self.item(self._table(parent, place), name, value, source)

    def guard_against_shadows(self, parent: int, name: str, place: str) -> None:
        """Guard that a module gives a name from this one of its dicts; raises `LeftToPython`."""
        space, kind = vars(self.values[parent]), type(self.values[parent])
        earlier = CHILDREN[: CHILDREN.index(place)]
        if any(type(space.get(table)) not in DICTS for table in earlier):
            raise LeftToPython("a module with dicts of its own kind")
        if not self._reads.past_getattr(kind, name):
            raise LeftToPython("a class that gives its attributes in its own way")
        self.pin_type(parent)
        self._not_before(parent, name, earlier)

    def _not_before(self, parent: int, name: str, earlier: Sequence[str]) -> None:
        self.instance_dict(parent).add_dict_contains_guard(False, name, *REASON)
        for table in earlier:
            self._table(parent, table).add_dict_contains_guard(False, name, *REASON)

    def _table(self, parent: int, name: str) -> Manager:
        made = self._tables.get((parent, name))
        if made is None:
            live = vars(self.values[parent])[name]
            made = self.item(self.instance_dict(parent), name, live, f"{parent}.{name}")
            self.guard_type(made, type(live))
            self._tables[parent, name] = made
        return made

    def _generic(self, node: int, name: Any) -> Manager:
        parent = self.of(self.parent(node))
        return parent.generic_getattr_manager(name, str(node), self.values[node], self.kind)

    # --- items

    def _item(self, node: int, arg: Any) -> Manager:
        parent, key = self.parent(node), decode(arg)
        manager = self.of(parent)
        if isinstance(self.values[parent], dict):
            self.pin_type(parent)
            return self.item(manager, key, self.values[node], str(node))
        return self.element(manager, key, self.values[node], str(node))

    def _index(self, node: int, arg: Any) -> Manager:
        index = decode(arg)
        if type(index) is not int:  # a slice makes a new object at each call
            raise LeftToPython("slice")
        return self.element(self.of(self.parent(node)), index, self.values[node], str(node))

    def _type_of(self, node: int, _: Any) -> Manager:
        parent = self.of(self.parent(node))
        return parent.type_manager(str(node), self.values[node], self.kind)

    def _special(self, name: str, node: int, key: object | None = None) -> Manager:
        parent, value = self.of(self.parent(node)), self.values[node]
        if key is None:
            return self.attribute(parent, name, value, str(node))
        table = getattr(self.values[self.parent(node)], name)
        manager = self.attribute(parent, name, table, f"{node}.{name}")
        return self.element(manager, key, value, str(node))


_MAKERS: dict[int, Callable[[Managers, int, Any], Manager]] = {
    Step.LOCAL: Managers._local,  # noqa: SLF001
    Step.GLOBAL: Managers._global,  # noqa: SLF001
    Step.MODULE: Managers._module,  # noqa: SLF001
    Step.NAMESPACE: Managers._namespace,  # noqa: SLF001
    Step.BUILTINS: Managers._builtins,  # noqa: SLF001
    Step.OWN_GLOBALS: lambda made, *_: made._globals,  # noqa: SLF001
    Step.ATTR: Managers._attr,  # noqa: SLF001
    Step.GENERIC_ATTR: Managers._generic,  # noqa: SLF001
    Step.ITEM: Managers._item,  # noqa: SLF001
    Step.INDEX: Managers._index,  # noqa: SLF001
    Step.TYPE: Managers._type_of,  # noqa: SLF001
    Step.TYPE_DICT: lambda made, node, _: made._special("__dict__", node),  # noqa: SLF001
    Step.MRO: lambda made, node, _: made._special("__mro__", node),  # noqa: SLF001
    Step.CODE: lambda made, node, _: made._special("__code__", node),  # noqa: SLF001
    Step.CLOSURE: lambda made, node, _: made._special("__closure__", node),  # noqa: SLF001
    Step.DEFAULT: lambda made, node, i: made._special("__defaults__", node, decode(i)),  # noqa: SLF001
    Step.KWDEFAULT: lambda made, node, k: made._special("__kwdefaults__", node, decode(k)),  # noqa: SLF001
}
"""The other steps are left to Python: keys by position, roots found by name, subclasses, sizes."""


def is_fixed(value: object) -> bool:
    """Whether the portable name of an object can't change while the object lives."""
    if isinstance(value, types.BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, (types.ModuleType, type, str))
    if type(value) is tuple:
        return all(map(is_fixed, value))
    if isinstance(value, type):
        return is_named(value)
    is_plain = isinstance(value, types.ModuleType) or type(value) in _SCALARS
    return is_plain or _is_fixed_of_mesh(value)


def _is_fixed_of_mesh(value: object) -> bool:
    if not type(value).__module__.startswith("torch.distributed."):
        return False
    from npugx_cache.private import meshes  # a hit without meshes does not load it

    return meshes.is_fixed(value)


def _is_pinnable(value: object, above: tuple[object, ...] = ()) -> bool:
    """Whether a function's defaults and cells hold only fixed values and such functions."""
    if not isinstance(value, types.FunctionType):
        return is_fixed(value)
    if any(value is each for each in above):  # a wrapper that calls itself by its name
        return True
    if len(above) > _NESTED_FUNCTIONS:
        return False
    try:
        contents = [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:  # a cell that is not filled yet
        return False
    carried = (*(value.__defaults__ or ()), *contents, *(value.__kwdefaults__ or {}).values())
    return all(_is_pinnable(each, (*above, value)) for each in carried)
