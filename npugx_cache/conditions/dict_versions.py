"""What a check read of a model's dicts, and need not read again as long as nobody wrote to them.

A graph of a model has thousands of conditions on attributes of its modules, which hardly ever
change. A module's child is the same object as before as long as the module is, and nobody wrote to
the dict in which the module keeps the child. So one comparison of the dict's version stands for all
that was read from the dict, by induction from the modules that a call reaches by other ways: the
roots. What can change while no dict is written to has a check of its own: the metadata of tensors,
`object.__class__`, the bases of classes.
"""

from __future__ import annotations

import types
import weakref
from array import array
from operator import attrgetter, call, getitem, is_
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.conditions.cpp_paths import CHILDREN, DICTS, PlainReads, is_fixed
from npugx_cache.conditions.data import CALL, Kind, Step
from npugx_cache.private import guard_managers, runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from npugx_cache.conditions.data import Conditions, Rows
    from npugx_cache.conditions.evaluate import Prepared

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: objects of such a class keep their class
_SCALARS = frozenset(
    {*(bool, int, float, complex, str, bytes, type(None))}
    | {torch.dtype, torch.layout, torch.device, torch.memory_format}
)
_TUPLES = (tuple, torch.Size)
_SIZED = (str, bytes, *_TUPLES)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_MARKS = frozenset(runtime.DIMENSION_MARKS)
_ATTR = int(Step.ATTR)
_DICT, _MRO = attrgetter("__dict__"), attrgetter("__mro__")


class DictVersions:
    """Whether all that was reached from the modules of a call by dicts alone is as it was.

    It keeps objects with a `__dict__`, and ordered dicts, by weak references: whoever calls a
    function with a model must be able to drop the model. Tensors and plain dicts are read again
    from where they are, because torch swaps no tensor that has a weak reference
    (`torch.utils.swap_tensors`), and a plain dict can have none.

    `keeps`: the function holds the model anyway, so dicts of the model's modules are kept
    (`KeptDicts`), because reading them again takes a quarter of the whole check.
    """

    def __init__(self, found: Found, *, keeps: bool) -> None:
        self._owners, self._types = found.refs, found.types
        self._versions = array("Q", found.versions)
        self._tables = Places(found.tables)
        self._table_versions = array("Q", found.table_versions)
        self._empty = Places(found.empty)
        self._empty_ordered = [ref for _, ref in found.empty_ordered]
        self._others = [ref for ref, _ in found.typed.values()]
        self._other_types = [kind for _, kind in found.typed.values()]
        self._classes, self._mros = list(found.mros), list(found.mros.values())
        tensors = [*found.bare.values(), *found.attributed.values()]
        self._tensors = Places(found.place_of(each) for each in tensors)
        self._metadata = guard_managers.tensor_metadata(tensors)
        self._bare = len(found.bare)
        self._attributes = array("Q", map(_version, map(_DICT, found.attributed.values())))
        self._kept: tuple[KeptDicts, ...] = ()
        if keeps:
            self._keep(found)

    def _keep(self, found: Found) -> None:
        empty = found.empty + [place for place, _ in found.empty_ordered]
        kept = KeptDicts(found.tables, found.types), KeptDicts(empty, found.types)
        self._tables, self._empty = self._kept = kept
        self._empty_ordered = []

        def let_go(_: object) -> None:
            for dicts in kept:
                dicts.let_go()

        self._owners = [weakref.ref(ref(), let_go) for ref in found.refs]

    def let_go(self) -> None:
        """Drop the dicts that are kept, until the next check."""
        for dicts in self._kept:
            dicts.let_go()

    def hold(self) -> bool:
        """Whether nobody wrote to a dict or put another in its place, or changed a class or tensor.

        Raises AttributeError, KeyError or TypeError if an object is gone.
        """
        owners = list(map(call, self._owners))
        own = list(map(_DICT, owners))
        if array("Q", map(_version, own)) != self._versions:
            self.let_go()
            return False
        tables = self._tables.read(own)
        if array("Q", map(_version, tables)) != self._table_versions:
            self.let_go()
            return False
        tensors = self._tensors.read(own + tables)
        return bool(
            not any(self._empty.read(own))
            and not any(map(call, self._empty_ordered))
            and all(map(is_, map(type, owners), self._types))
            and all(map(is_, map(type, map(call, self._others)), self._other_types))
            and all(map(is_, map(_MRO, self._classes), self._mros))
            and self._metadata.check(*tensors)
            and not any(map(_DICT, tensors[: self._bare]))
            and array("Q", map(_version, map(_DICT, tensors[self._bare :]))) == self._attributes
        )


class Places:
    """Where values are found again: each the number of a dict, and a key."""

    def __init__(self, places: Iterable[tuple[int, Any]]) -> None:
        listed = list(places)
        self._numbers = [number for number, _ in listed]
        self._keys = [key for _, key in listed]

    def read(self, dicts: list[Any]) -> list[Any]:
        return list(map(getitem, map(dicts.__getitem__, self._numbers), self._keys))


class KeptDicts(Places):
    """Dicts of objects. Those that torch gives each module are kept from one read to the next.

    What is taken out of a model must be let go: at once, when one of the objects dies. What a kept
    dict alone still holds, and what refers back to the module of this dict, stays until `let_go`:
    when a version differs, or any graph of the function needs a full check. Other dicts are not
    kept, because a model may put large things into a new dict at each call.
    """

    def __init__(self, places: list[tuple[int, str]], kinds: Sequence[type]) -> None:
        super().__init__(places)
        self._kept: list[Any] | None = None
        self._others = [
            (position, number, key)
            for position, (number, key) in enumerate(places)
            if key not in _OF_MODULES or not issubclass(kinds[number], torch.nn.Module)
        ]

    def read(self, dicts: list[Any]) -> list[Any]:
        kept = self._kept
        if kept is None:
            found = super().read(dicts)
            kept = found.copy()
            for position, _, _ in self._others:
                kept[position] = None
            self._kept = kept
            return found
        found = kept.copy()
        for position, number, key in self._others:
            found[position] = dicts[number][key]
        return found

    def let_go(self) -> None:
        self._kept = None


_OF_MODULES = frozenset(
    name for name, value in vars(torch.nn.Module()).items() if type(value) in DICTS
)
"""The names of the dicts that torch gives each module: children, and hooks."""


Owner = tuple[int, dict[str, Any], dict[str, bool]]
"""An object's number, its `__dict__`, and which names can be read from there."""


class Found:
    """Which values are reached by dicts alone, which conditions that implies, and on what terms.

    Make it before the conditions are tested: what is written meanwhile is seen at the next check,
    because the versions are older. `check` keeps what it needs, and the rest can be dropped.
    `owner` is an object that the function is bound to, and holds for as long as the function lives.
    """

    def __init__(
        self,
        tree: Conditions,
        steps: Sequence[Prepared],
        values: Sequence[Any],
        owner: object = None,
    ) -> None:
        self.reads = PlainReads()
        self.roots: list[int] = []
        """The nodes whose values a check must find to be the same objects, before versions."""
        self.refs: list[Any] = []
        """Of objects with a `__dict__`, whose classes and versions are in the next lists."""
        self.types: list[type] = []
        self.versions: list[int] = []
        self.mros: dict[type, tuple[type, ...]] = {}
        """The classes of all these objects, with their bases."""
        self.tables: list[tuple[int, str]] = []
        """Dicts under a name of such an object, with versions in the next list."""
        self.table_versions: list[int] = []
        self.empty: list[tuple[int, str]] = []
        """Dicts that must stay empty, because an empty one's version says less: where they are.

        On Python 3.12 and later, it stays the same at `d.update(other)`.
        """
        self.empty_ordered: list[tuple[tuple[int, str], Any]] = []
        """Those that can have weak references, by which they are read faster: place, reference."""
        self.typed: dict[int, tuple[Any, type]] = {}
        """Other objects, of which the class alone is compared."""
        self.bare: dict[int, Any] = {}
        """Tensors that can have a dimension mark only after a write to an empty `__dict__`."""
        self.attributed: dict[int, Any] = {}
        """Tensors with attributes, of which none is a dimension mark."""
        self.apart: list[tuple[list[int], frozenset[int]]] = []
        """Nodes, and the ids of objects that none of their values may be."""
        self._values = values
        self._known = bytearray(len(values))
        self._owners: dict[int, Owner] = {}
        self._names: dict[type, dict[str, bool]] = {}
        self._pinned: dict[int, int | None] = {}
        """The dicts of `tables`, by number, and those that must stay empty."""
        self._tensors: dict[int, tuple[int, bool, Any]] = {}
        known, is_reached, is_attribute = self._known, self._is_reached, self._is_attribute
        for node, (parent, step, arg) in enumerate(steps):
            value = values[node]
            if parent >= 0 and known[parent]:
                if step == _ATTR:
                    known[node] = is_attribute(values[parent], arg, value)
                else:
                    known[node] = is_reached(values[parent], step, arg, value)
            elif isinstance(value, torch.nn.Module) and self._watch_version(value) is not None:
                known[node] = True
                self.roots.append(node)
        self.left = {kind: self._rows_left(kind, *rows) for kind, rows in tree.checks.items()}
        """The conditions that need a check of their own, by kind, as in `Conditions.checks`."""
        keeps = len(self.roots) == 1 and values[self.roots[0]] is owner
        self.check = DictVersions(self, keeps=keeps)

    def place_of(self, tensor: object) -> tuple[int, Any]:
        """The number of the dict that holds a tensor, `__dict__`s before tables, and the key."""
        number, of_table, key = self._tensors[id(tensor)]
        return (number + len(self.refs) if of_table else number), key

    def _rows_left(self, kind: Kind, nodes: tuple[int, ...], args: tuple[Any, ...]) -> Rows:
        implied, known, values = _IMPLIED.get(kind), self._known, self._values
        if kind is Kind.SAME:
            pairs = tuple(self._not_same(args))
            return (CALL,) * len(pairs), pairs
        if kind is Kind.DIFFERENT:
            groups = [group for group in map(self._not_apart, args) if group]
            return (CALL,) * len(groups), tuple(groups)
        if implied is None:
            return nodes, args
        rows = [
            (node, arg)
            for node, arg in zip(nodes, args, strict=True)
            if not (known[node] and implied(self, values[node], arg))
        ]
        return tuple(node for node, _ in rows), tuple(arg for _, arg in rows)

    def _not_same(self, pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The pairs of one object that are still to be compared.

        What is known stays the object that it is: one comparison with it does for all pairs.
        """
        compared: set[int] = set()
        for pair in pairs:
            others = [node for node in pair if not self._known[node]]
            if len(others) == 2 or not compared.issuperset(others):
                yield pair
            if len(others) == 1:
                compared.update(others)

    def _not_apart(self, group: Collection[int]) -> list[int]:
        """Those of a group of different objects that are still to be compared with one another."""
        known, values = self._known, self._values
        others = [node for node in group if not known[node]]
        if others and len(others) < len(group):
            self.apart.append((others, frozenset(id(values[n]) for n in group if known[n])))
        return others if len(others) > 1 else []

    # --- which values are reached by dicts alone

    def _is_reached(self, holder: Any, step: int, arg: Any, value: object) -> bool:
        if step == Step.ITEM:
            number = self._pinned.get(id(holder))
            if number is None or type(arg) not in _SCALARS or holder.get(arg) is not value:
                return False
            if arg not in holder:  # `value` is None, which `get` gives as well
                return False
            if isinstance(value, torch.Tensor):
                self._tensors[id(value)] = number, True, arg
            return True
        if step == Step.TYPE:
            return self._keeps_type(holder, None)
        if step == Step.INDEX:
            return type(holder) is tuple and type(arg) is int and holder[arg] is value
        return False

    def _is_attribute(self, holder: Any, name: str, value: object) -> bool:
        owner = self._owners.get(id(holder)) or self._watch_version(holder)
        if owner is None:
            return False
        place, space, plain = owner
        if not (plain[name] if name in plain else self._is_plain(holder, plain, name)):
            return False
        if name in space:
            if space[name] is not value:
                return False
            if type(value) in DICTS:
                self._pin(place, name, value)
            elif isinstance(value, torch.Tensor):
                self._tensors[id(value)] = place, False, name
            return True
        return isinstance(holder, torch.nn.Module) and self._is_child(place, space, name, value)

    def _is_plain(self, holder: object, plain: dict[str, bool], name: str) -> bool:
        """Whether an object gives a name from dicts; `plain` has the answers for its class."""
        answer = plain[name] = self.reads.past_getattr(type(holder), name)
        return answer

    def _is_child(self, place: int, space: dict[str, Any], name: str, value: object) -> bool:
        for table in CHILDREN:
            found: Any = space.get(table)
            if type(found) not in DICTS:
                return False
            self._pin(place, table, found)
            if name in found:
                return self._is_reached(found, Step.ITEM, name, value)
        return False

    # --- what that depends on

    def _watch_version(self, holder: Any) -> Owner | None:
        """Compare the version of an object's `__dict__` from now on; None if it has none."""
        owner = self._owners.get(id(holder))
        if owner is not None:
            return owner
        kind, space = type(holder), getattr(holder, "__dict__", None)
        if type(space) is not dict or not space or isinstance(holder, (type, torch.Tensor)):
            return None
        # Before anything is read through the class: other bases, set meanwhile, are a change.
        self.mros.setdefault(kind, kind.__mro__)
        if not self.reads.has_plain_dict(kind):
            return None
        try:
            self.refs.append(weakref.ref(holder))
        except TypeError:
            return None
        owner = self._owners[id(holder)] = len(self.types), space, self._names.setdefault(kind, {})
        self.versions.append(_version(space))
        self.types.append(kind)
        return owner

    def _pin(self, place: int, name: str, table: Any) -> None:
        """See to it that writes to a dict in the `__dict__` of an object are noticed."""
        if id(table) in self._pinned:
            return
        if table:
            self._pinned[id(table)] = len(self.tables)
            self.tables.append((place, name))
            self.table_versions.append(_version(table))
            return
        self._pinned[id(table)] = None
        if type(table) is dict:
            self.empty.append((place, name))
        else:
            self.empty_ordered.append(((place, name), weakref.ref(table)))

    def _is_pinned(self, value: Any) -> bool:
        return type(value) in DICTS and id(value) in self._pinned

    # --- which conditions hold as long as the object is the same; each notes what that takes

    def _keeps_type(self, value: Any, _: Any) -> bool:
        kind = type(value)
        if id(value) in self._owners or id(value) in self.typed:
            return True
        if isinstance(value, torch.Tensor):
            return self._keeps_metadata(value)
        # The class of a module or of another class can be set, though those classes are immutable.
        if kind.__flags__ & _IMMUTABLE and not issubclass(kind, (type, types.ModuleType)):
            return True
        try:
            self.typed[id(value)] = weakref.ref(value), kind
        except TypeError:
            return False
        self.mros.setdefault(kind, kind.__mro__)
        return True

    def _keeps_metadata(self, value: Any, _: Any = None) -> bool:
        if type(value) not in _TENSORS or not _MARKS.isdisjoint(vars(value)):
            return False
        if id(value) not in self._tensors:  # it is in a tuple
            return False
        kept = self.attributed if vars(value) else self.bare
        kept[id(value)] = value
        return True

    def _keeps_keys(self, value: Any, _: Any) -> bool:
        return self._is_pinned(value) and all(type(key) in _SCALARS for key in value)

    def _keeps_order(self, value: Any, arg: Any) -> bool:
        # The order of an OrderedDict is not in its dict: `move_to_end` leaves the version.
        return (type(value) is dict or not value) and self._keeps_keys(value, arg)

    def _keeps_length(self, value: Any, _: Any) -> bool:
        return type(value) in _SIZED or self._is_pinned(value)

    def _keeps_attributes(self, value: Any, _: Any) -> bool:
        return self._watch_version(value) is not None

    def _keeps_names(self, value: Any, names: Any) -> bool:
        owner = self._watch_version(value)
        if owner is None:
            return False
        place, space, plain = owner
        for name in (*names[0], *names[1], *names[2]):
            if not (plain[name] if name in plain else self._is_plain(value, plain, name)):
                return False
        _, buffers, modules, _ = names
        for table in CHILDREN[: 2 if modules else 1 if buffers else 0]:
            held = space.get(table)
            if type(held) not in DICTS:
                return False
            self._pin(place, table, held)
        return True

    def _keeps_attribute(self, value: Any, name: str) -> bool:
        return self._is_attribute(value, name, getattr(value, name))


_version: Callable[[Any], int] = guard_managers.dict_version


def _is_constant(value: Any) -> bool:
    if type(value) in _TUPLES:
        return all(map(_is_constant, value))
    return type(value) in _SCALARS


_IMPLIED: dict[int, Callable[[Found, Any, Any], bool]] = {
    Kind.TYPE: Found._keeps_type,  # noqa: SLF001
    Kind.IDENTITY: lambda _, value, _arg: is_fixed(value),
    Kind.EQUALS: lambda _, value, _arg: _is_constant(value),
    Kind.TENSOR: Found._keeps_metadata,  # noqa: SLF001
    Kind.LENGTH: Found._keeps_length,  # noqa: SLF001
    Kind.ABSENT_ATTRS: Found._keeps_attributes,  # noqa: SLF001
    Kind.HAS_ATTR: Found._keeps_attribute,  # noqa: SLF001
    Kind.CONTAINS: Found._keeps_keys,  # noqa: SLF001
    Kind.NOT_CONTAINS: Found._keeps_keys,  # noqa: SLF001
    Kind.KEYS: Found._keeps_order,  # noqa: SLF001
    Kind.ATTRIBUTES: Found._keeps_attributes,  # noqa: SLF001
    Kind.KEY_SET: Found._keeps_keys,  # noqa: SLF001
    Kind.UNSHADOWED: Found._keeps_names,  # noqa: SLF001
    Kind.NOT_NONE: lambda *_: True,
}
