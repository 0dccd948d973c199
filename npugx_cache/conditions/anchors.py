"""Values that are the same objects as before, as long as nobody writes to some dicts.

A graph of a model has thousands of conditions on attributes of its modules, which hardly ever
change. A module's child is the same object as before as long as the module is, and nobody wrote to
the dict in which the module keeps the child: one comparison of a dict's version by torch's C++
stands for all that is read from the dict. `Anchors` finds the values of a guard tree that are
reached like this from a module, its root, and says which conditions then need no check of their
own. What can change while the object stays the same (a tensor's data, a list) keeps its check.
"""

from __future__ import annotations

import weakref
from array import array
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.conditions.cpp_paths import DICTS, LeftToPython, is_fixed
from npugx_cache.conditions.data import CALL, Kind, Step
from npugx_cache.portable import decode
from npugx_cache.private import guard_managers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npugx_cache.conditions.cpp_paths import Managers

    Manager = Any

_CHUNK = 64
"""Accessors of one manager: torch looks through all of them when it adds one."""

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: objects of such a class keep their class
_SCALARS = (
    *(bool, int, float, complex, str, bytes, type(None)),
    *(torch.dtype, torch.layout, torch.device, torch.memory_format),
)
_TUPLES = (tuple, torch.Size)
_SIZED = (str, bytes, *_TUPLES)
_DICT, _MRO, _CLASS = attrgetter("__dict__"), attrgetter("__mro__"), type


class Held:
    """The objects of anchored values. Lets go of all when one of the roots is deleted.

    Without that, a model that nobody uses would stay in memory until the next call.
    """

    def __init__(self) -> None:
        self.chunks: list[list[object]] = []
        self.owners: list[object] = []
        self.dicts: list[object] = []
        self.typed: list[object] = []
        self.types: list[type] = []
        self.mros: dict[type, tuple[type, ...]] = {}
        self.empty: list[object] = []
        self.spaces: list[dict[Any, Any]] = []
        self.versions = array("Q")
        self._roots: list[object] = []

    def follow(self, root: object) -> None:
        self._roots.append(weakref.ref(root, self._clear))

    def same(self) -> bool:
        """Whether nobody wrote to a dict or put another in its place, or changed a class.

        Modules have many dicts of hooks, nearly all of them empty: a look at each is enough.
        """
        return (
            all(map(is_, map(_DICT, self.owners), self.dicts))
            and all(map(is_, map(_CLASS, self.typed), self.types))
            and all(map(is_, map(_MRO, self.mros), self.mros.values()))
            and not any(self.empty)
            and array("Q", map(guard_managers.dict_version, self.spaces)) == self.versions
        )

    def _clear(self, _: object) -> None:
        # The empty chunks make C++ refuse.
        lists: tuple[list[Any], ...] = (self.owners, self.dicts, self.typed, self.types)
        for each in (*self.chunks, *lists, self.empty, self.spaces):
            each.clear()


class Anchors:
    """The anchored nodes of a guard tree, and the managers of what they depend on."""

    def __init__(self, managers: Managers) -> None:
        self.held = Held()
        self._managers, self._values = managers, managers.values
        managers.roots["held"] = self.held.chunks
        self._list = managers.item(managers.above, "held", self.held.chunks, "held")
        self._chunk: Manager = None
        self._places: dict[int, Manager] = {}
        self._pinned: set[int] = set()
        self._owned: set[int] = set()
        self._typed: set[int] = set()
        self._nodes: set[int] = set()
        self._roots: set[int] = set()
        managers.anchored = self.manager
        tree = managers.tree
        for node, (parent, step, arg) in enumerate(
            zip(tree.parents, tree.steps, tree.args, strict=True)
        ):
            if parent in self._nodes and self._is_reached(parent, step, arg, self._values[node]):
                self._nodes.add(node)
            elif isinstance(self._values[node], torch.nn.Module) and self._is_root(node):
                self._nodes.add(node)
                self._roots.add(node)

    def manager(self, node: int) -> Manager | None:
        """The manager of an anchored value; None for what must be read along its path."""
        if node not in self._nodes or node in self._roots:
            return None
        return self._place(self._values[node])

    def are(self, values: Sequence[Any]) -> bool:
        """Whether the anchored values are these."""
        return all(values[node] is self._values[node] for node in self._nodes)

    def implies(self, node: int, kind: int, arg: Any) -> bool:
        """Whether a condition that holds goes on to hold as long as the anchors do."""
        if node == CALL:
            return kind in (Kind.SAME, Kind.DIFFERENT) and self._nodes.issuperset(arg)
        test = _IMPLIED.get(kind)
        return test is not None and node in self._nodes and test(self, self._values[node], arg)

    # --- which values are anchored

    def _is_root(self, node: int) -> bool:
        root, managers = self._values[node], self._managers
        space = vars(root)
        if type(space) is not dict:
            return False
        try:
            managers.pin_type(node)
            managers.instance_dict(node).add_id_match_guard(id(space), _REASON, None)
        except LeftToPython:
            return False
        # Not `guard_identity`, which keeps the object alive.
        managers.of(node).add_id_match_guard(id(root), _REASON, None)
        self.held.follow(root)
        self._owned.add(id(root))
        self._typed.add(id(root))
        return True

    def _is_reached(self, parent: int, step: int, arg: Any, value: object) -> bool:
        holder = self._values[parent]
        if step == Step.ATTR:
            return self._is_attribute(holder, arg, value)
        if step == Step.ITEM:
            return type(holder) in DICTS and self._is_in(holder, decode(arg), value)
        if step == Step.INDEX:
            index = decode(arg)
            return type(holder) is tuple and type(index) is int and holder[index] is value
        return False

    def _is_attribute(self, holder: Any, name: str, value: object) -> bool:
        space = getattr(holder, "__dict__", None)
        if type(space) is not dict or isinstance(holder, (type, torch.Tensor)):
            return False
        if not self._managers.read_past_getattr(type(holder), name):
            return False
        if name in space:
            return self._owns(holder, space) and self._is_in(space, name, value)
        for table in _CHILDREN if isinstance(holder, torch.nn.Module) else ():
            found: Any = space.get(table)
            if type(found) not in DICTS or not self._owns(holder, space):
                return False
            self._pin(found)
            if name in found:
                return found[name] is value
        return False

    def _is_in(self, space: dict[Any, Any], key: object, value: object) -> bool:
        if type(key) not in _SCALARS or key not in space or space[key] is not value:
            return False
        self._pin(space)
        return True

    # --- what anchors depend on

    def _owns(self, holder: object, space: dict[str, Any]) -> bool:
        if id(holder) not in self._owned:
            self._owned.add(id(holder))
            self.held.owners.append(holder)
            self.held.dicts.append(space)
            self._keep_type(holder)
        self._pin(space)
        return True

    def _keep_type(self, value: object) -> bool:
        kind = type(value)
        if id(value) not in self._typed and not kind.__flags__ & _IMMUTABLE:
            self._typed.add(id(value))
            self.held.typed.append(value)
            self.held.types.append(kind)
            self.held.mros.setdefault(kind, kind.__mro__)
        return True

    def _pin(self, space: dict[Any, Any]) -> bool:
        """See to it that writes to a dict are noticed."""
        if id(space) not in self._pinned:
            self._pinned.add(id(space))
            self.held.spaces.append(space)
            self.held.versions.append(guard_managers.dict_version(space))
        return True

    def _place(self, value: object) -> Manager:
        made = self._places.get(id(value))
        if made is None:
            chunks, kind = self.held.chunks, self._managers.kind
            if not chunks or len(chunks[-1]) == _CHUNK:
                chunks.append([])
                number = len(chunks) - 1
                self._chunk = self._list.list_getitem_manager(
                    number, f"held[{number}]", chunks[-1], kind
                )
            chunk = chunks[-1]
            chunk.append(value)
            place = len(chunk) - 1
            made = self._chunk.list_getitem_manager(
                place, f"held[{len(chunks) - 1}][{place}]", value, kind
            )
            self._places[id(value)] = made
        return made

    # --- which conditions hold as long as the object is the same

    def _has_same_keys(self, value: Any, _: Any) -> bool:
        if type(value) not in DICTS or any(type(key) not in _SCALARS for key in value):
            return False
        return self._pin(value)

    def _has_same_order(self, value: Any, arg: Any) -> bool:
        # The order of an OrderedDict is not in its dict: `move_to_end` leaves the version.
        return type(value) is dict and self._has_same_keys(value, arg)

    def _has_same_length(self, value: Any, _: Any) -> bool:
        if type(value) in DICTS and not value:
            self.held.empty.append(value)
            return True
        if type(value) in DICTS:
            return self._pin(value)
        return type(value) in _SIZED

    def _has_same_attributes(self, value: Any, _: Any) -> bool:
        space = getattr(value, "__dict__", None)
        if type(space) is not dict or isinstance(value, (type, torch.Tensor)):
            return False
        return self._owns(value, space)


_REASON = ["npugx_cache"]
_CHILDREN = ("_parameters", "_buffers", "_modules")


def _is_constant(value: Any) -> bool:
    if type(value) in _TUPLES:
        return all(map(_is_constant, value))
    return type(value) in _SCALARS


_IMPLIED: dict[int, Callable[[Anchors, Any, Any], bool]] = {
    Kind.TYPE: lambda anchors, value, _: anchors._keep_type(value),  # noqa: SLF001
    Kind.IDENTITY: lambda _, value, _arg: is_fixed(value),
    Kind.EQUALS: lambda _, value, _arg: _is_constant(value),
    Kind.LENGTH: Anchors._has_same_length,  # noqa: SLF001
    Kind.ABSENT_ATTR: Anchors._has_same_attributes,  # noqa: SLF001
    Kind.CONTAINS: Anchors._has_same_keys,  # noqa: SLF001
    Kind.NOT_CONTAINS: Anchors._has_same_keys,  # noqa: SLF001
    Kind.KEYS: Anchors._has_same_order,  # noqa: SLF001
    Kind.ATTRIBUTES: Anchors._has_same_attributes,  # noqa: SLF001
    Kind.KEY_SET: Anchors._has_same_keys,  # noqa: SLF001
    Kind.NOT_NONE: lambda *_: True,
}
