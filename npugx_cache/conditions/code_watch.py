"""Detects monkey-patching and other edits of code between two calls, without hashing code.

Three parts, each the fast path of the next: the version tags of class and module dicts, compared in
C++; the names in them, compared by identity; what led to the source facts, compared by identity.
"""

from __future__ import annotations

import sys
import types
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.conditions.source_facts import (
    SPECIAL,
    captured_values,
    constant_answer,
    function_value,
    function_without_name,
    functions_of_method,
    group_ranks,
    is_subclass,
    is_watched_for_patches,
    method_hash,
    missing,
    names_of_pair,
    pair_of,
    tensor_class,
)
from npugx_cache.events import logger
from npugx_cache.portable import (
    PLAIN_MEMBERS,
    NotPortable,
    body_of,
    function_chain,
    is_covered_class,
    is_named,
    look_up,
    unwrap,
)
from npugx_cache.private import guard_managers
from npugx_cache.private.fx import without_fx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from npugx_cache.conditions.contents import Contents

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: no attribute of such a class can be set


class SealedNames:
    """What a set of names stood for when this object was made. Safe to use from several threads."""

    def __init__(self, rows: Iterable[Row], whole: Iterable[Whole] = ()) -> None:
        kept, classes = list(rows), list(whole)
        self._names = PinnedNames(kept, classes)
        owners = [*(owner for owner, _ in kept), *(cls for cls, _ in classes)]
        self._owners = list({id(owner): owner for owner in owners}.values())
        self._seal: Any = None
        self._passed = 0

    def is_unchanged(self) -> bool:
        if self._seal is not None and self._seal.check(_NO_LOCALS):
            return True
        if not self._names.is_unchanged():
            return False
        self._passed += 1
        # The 2nd, 4th, 8th, ... time: where a module counts in a global, tags never stay the same.
        if self._passed > 1 and self._passed.bit_count() == 1:
            self._renew()
        return True

    def _renew(self) -> None:
        try:
            seal = _seal(self._owners)
        except Exception as reason:  # noqa: BLE001 - the names can be compared without it
            logger.debug("names are compared one by one: %r", reason)
            return
        # Once more: another thread may have patched something before the versions were read.
        self._seal = seal if self._names.is_unchanged() else None


_NO_LOCALS: dict[str, Any] = {}


def _seal(owners: list[Any]) -> Any:
    """A guard that holds as long as nobody writes to the dict of one of these owners."""
    root = guard_managers.RootGuardManager()
    with guard_managers.building() as kind:
        above = root.globals_dict_manager({"owners": owners}, "roots", {"owners": owners}, kind)
        every = above.dict_getitem_manager("owners", "owners", owners, kind)
        for position, owner in enumerate(owners):
            if isinstance(owner, type) and owner.__flags__ & _IMMUTABLE:
                continue
            place = every.list_getitem_manager(position, str(position), owner, kind)
            if isinstance(owner, type):
                space = guard_managers.class_dict(owner)
                held = place.type_dict_manager(f"{position}.__dict__", space, kind)
            elif isinstance(owner, types.ModuleType):
                space = vars(owner)
                held = place.get_generic_dict_manager(f"{position}.__dict__", space, kind)
            else:
                raise TypeError(f"no version of {type(owner).__name__}.__dict__")
            held.add_dict_version_guard(space, *guard_managers.REASON)
    return root


# Detects monkey-patching: compares what names in classes and modules stand for, by identity.


ABSENT = object()
"""Stands for the value of a name that a namespace does not have."""

Row = tuple[Any, dict[str, object]]
"""An object with a namespace (a class or a module), and what its names stand for or `ABSENT`."""

Whole = tuple[type, frozenset[str]]
"""A class, and all names of its body (`portable.body_of`)."""


def looked_up(cls: type, name: str) -> Iterator[Row]:
    """The rows that decide what a name means in a class: up to the class that provides it."""
    for base in cls.__mro__:
        yield base, {name: vars(base).get(name, ABSENT)}
        if name in vars(base):
            return


class PinnedNames:
    """What a set of names stood for when this object was made. Keeps owners and values alive."""

    def __init__(self, rows: Iterable[Row], whole: Iterable[Whole] = ()) -> None:
        self._whole = tuple(whole)
        spaces: dict[int, tuple[Any, dict[str, object]]] = {}
        for owner, names in rows:
            spaces.setdefault(id(owner), (owner, {}))[1].update(names)
        self._present: list[tuple[Mapping[str, Any], Callable[..., Any], tuple[object, ...]]] = []
        self._absent: list[tuple[Mapping[str, Any], frozenset[str]]] = []
        for owner, names in spaces.values():
            self._add(vars(owner), names)

    def _add(self, space: Mapping[str, Any], names: dict[str, object]) -> None:
        found = {name: value for name, value in names.items() if value is not ABSENT}
        if found:
            first = next(iter(found))  # named twice: of a single name itemgetter makes no tuple
            self._present.append(
                (space, itemgetter(*found, first), (*found.values(), found[first]))
            )
        if missing := frozenset(names) - found.keys():
            self._absent.append((space, missing))

    def is_unchanged(self) -> bool:
        try:
            return (
                all(all(map(is_, get(space), values)) for space, get, values in self._present)
                and all(space.keys().isdisjoint(names) for space, names in self._absent)
                and all(body_of(cls).keys() == names for cls, names in self._whole)
            )
        except KeyError:  # somebody deleted a name
            return False


# Detects between two calls that code was patched, without hashing code.
#
# Before an entry is bound, each source fact is checked in full. From then on we compare by identity
# the names in classes and modules, the functions and the code objects that led to the fact. After a
# patch the graph is not used; the next lookup checks the facts in full and says what changed.


_CODE, _MRO = attrgetter("__code__"), attrgetter("__mro__")
_Module = torch.nn.Module


class Watch:
    """Everything that led to a set of source facts. Raises `NotPortable` if a fact is not found.

    The `watch` form of each fact's kind puts what it wants to have watched into the lists.
    `bodies` are classes that conditions compared by what their bodies hold, because no name leads
    to them: a class inside a function, and the class that torch.fx makes for each of its modules.
    `names` are watched with the functions that they stand for, and with what these captured;
    `classes` with their bases and metaclasses; `pairs` may become derived from one another, or not.
    """

    def __init__(
        self,
        facts: Iterable[tuple[Any, Sequence[str]]],
        bodies: Iterable[type] = (),
        names: Iterable[Row] = (),
        classes: Iterable[type] = (),
        pairs: Iterable[tuple[type, type]] = (),
    ) -> None:
        self.names: list[Row] = list(names)
        self.functions: dict[int, types.FunctionType] = {}
        self.subclasses: list[tuple[type, type, bool]] = []
        self.methods: dict[int, types.FunctionType] = {}
        self.asked_again: list[Callable[[], bool]] = []
        self.contents: list[Contents] = []
        self.operators: list[tuple[str, str, str]] = []
        self.calls_modules = False
        self.paths: dict[tuple[str, str], Any] = {}
        self.whole: list[Whole] = []
        self.with_mro = {id(cls): cls for cls in classes}
        for _, found in self.names:
            functions = list(chain.from_iterable(map(function_chain, found.values())))
            self.add_functions(functions)
            self.methods.update((id(function), function) for function in functions)
        for watch, fact in facts:
            watch(self, *fact)
        if self.contents:
            from npugx_cache.conditions.contents import Pinned

            self.asked_again.append(Pinned(self.contents).is_unchanged)
            self.contents.clear()
        self._module_call = without_fx(_Module.__call__) if self.calls_modules else None
        if self.operators:
            from npugx_cache.conditions.operators import Watched

            self.asked_again.append(Watched(self.operators).is_unchanged)
        for cls in bodies:
            self._add_body(cls)
        for pair in pairs:
            try:
                self.subclasses.append((*pair, issubclass(*pair)))
            except TypeError:  # the class does not say, as a TypedDict
                raise NotPortable(f"{pair[1].__qualname__} has no subclasses") from None
        self._names = SealedNames(self.names, self.whole)
        # A module that is loaded no more may still be in use; one that is loaded anew is another.
        modules = {module: found for (module, path), found in self.paths.items() if not path}
        self._modules, self._functions = list(modules), list(self.functions.values())
        self._loaded = [*modules.values(), *map(_CODE, self._functions)]
        self._ordered = list(self.with_mro.values())
        self._based = list(self._bases())
        self._methods = list(self.methods.values())
        self._captured = list(chain.from_iterable(map(captured_values, self._methods)))
        self._classes = [cls for cls, _, _ in self.subclasses]
        self._others = [other for _, other, _ in self.subclasses]
        self._said = [said for _, _, said in self.subclasses]

    def is_unchanged(self) -> bool:
        loaded = chain(map(sys.modules.get, self._modules), map(_CODE, self._functions))
        return (
            self._names.is_unchanged()
            and all(map(is_, loaded, self._loaded))
            and (not self.calls_modules or self._calls_modules_as_before())
            and (not self._methods or self._captured_is_same())
            and (not self.asked_again or all(ask() for ask in self.asked_again))
            and (not self._ordered or all(map(is_, self._bases(), self._based)))
            and (
                not self._said
                or all(map(is_, map(issubclass, self._classes, self._others), self._said))
            )
        )

    def add_functions(self, functions: Iterable[types.FunctionType]) -> None:
        self.functions.update((id(function), function) for function in functions)

    def add_nameless(self, cls: type, names: Mapping[str, object]) -> None:
        """Watch the code of each function in a class that its name does not identify."""
        for name, member in names.items():
            function = function_without_name(cls, name, without_fx(member))
            if function is not None:
                self.functions[id(function)] = function

    def _add_body(self, cls: type) -> None:
        """Watch what `portable.class_body_hash` reads of a class, its bases and its metaclass."""
        kind: type = type(cls)
        self.with_mro[id(cls)] = cls
        for base in (*cls.__mro__, *kind.__mro__):
            if is_named(base):
                continue
            members = body_of(base)
            self.whole.append((base, frozenset(members)))
            compared = {}
            for name, member in members.items():
                function = unwrap(member)
                if isinstance(function, types.FunctionType):
                    self.functions[id(function)] = function
                elif not isinstance(member, PLAIN_MEMBERS):
                    continue
                compared[name] = member
            self.names.append((base, compared))

    def _calls_modules_as_before(self) -> bool:
        """Whether modules are called as they were: a trace in another thread changes nothing."""
        called = _Module.__call__
        return called is self._module_call or without_fx(called) is self._module_call

    def _bases(self) -> Iterator[object]:
        """Of the classes: their bases, and their metaclasses (`SomeClass.__class__ = Other`)."""
        return chain(map(_MRO, self._ordered), map(type, self._ordered))

    def _captured_is_same(self) -> bool:
        now = list(chain.from_iterable(map(captured_values, self._methods)))
        return len(now) == len(self._captured) and all(map(is_, now, self._captured))


def watch_name(watch: Watch, module: str, name: str, _: str = "") -> None:
    """The namespaces that decide what a name means, in the order they are asked.

    From the module on, because a class that is bound anew under its own name, as by a reload or a
    notebook, has the same portable name, and other contents.
    """
    owner, _, last = name.rpartition(".")
    _watch_member(watch, _watch_path(watch, module, owner), last)


def _watch_path(watch: Watch, module: str, path: str) -> Any:
    """Watch what leads to an object, once for all of its members, and return the object."""
    key = module, path
    if key not in watch.paths:
        if path:
            watch_name(watch, module, path)
        watch.paths[key] = look_up(module, path) if path else sys.modules[module]
    return watch.paths[key]


def _watch_member(watch: Watch, holder: Any, name: str) -> None:
    if isinstance(holder, type):
        watch.names += looked_up(holder, name)
    else:
        watch.names.append((holder, {name: vars(holder).get(name, ABSENT)}))


def watch_function(watch: Watch, module: str, name: str, _: str) -> None:
    watch_name(watch, module, name)
    watch.add_functions(function_chain(look_up(module, name)))


def watch_lookups(watch: Watch, module: str, name: str, *found: str) -> None:
    """Each name in each class up to the one that provides the name; `found` is the fact's rest.

    `Module.__call__` is asked by itself, because torch.fx replaces the function for a while.
    """
    cls = _watch_path(watch, module, name)
    if not isinstance(cls, type):
        raise NotPortable(f"{module}.{name} is no class")
    missing = set(found[::2])
    for base in cls.__mro__:
        space = dict(vars(base))  # another thread may patch the class meanwhile
        present = {each: space[each] for each in missing.intersection(space)}
        if base is _Module and present.pop("__call__", None) is not None:
            missing.remove("__call__")
            watch.calls_modules = True
        watch.names.append((base, {**dict.fromkeys(missing, ABSENT), **present}))
        watch.add_nameless(base, present)
        missing -= present.keys()
        if not missing:
            break


def watch_method(watch: Watch, module: str, name: str, was: str) -> None:
    """With the values that the functions captured; what may change in place is read again."""
    watch_name(watch, module, name)
    functions = functions_of_method(look_up(module, name))
    watch.add_functions(functions)
    watch.methods.update((id(function), function) for function in functions)
    if not all(is_fixed(value) for function in functions for value in captured_values(function)):
        watch.asked_again.append(lambda: method_hash(module, name) == was)


def watch_function_value(watch: Watch, module: str, name: str, was: str) -> None:
    watch_method(watch, module, name.rpartition(".")[0], "")
    watch.asked_again.append(lambda: function_value(module, name) == was)


def is_fixed(value: object) -> bool:
    """Whether identity says all about a captured value; functions are watched themselves."""
    if type(value) is tuple:
        return all(is_fixed(each) and type(each) is not types.FunctionType for each in value)
    return type(value) in _FIXED or isinstance(value, (type, torch.Tensor))


_FIXED = frozenset(
    {*(bool, int, float, complex, str, bytes, type(None), types.FunctionType)}
    | {types.ModuleType, torch.dtype, torch.device, torch.Size}
)


def watch_tensor_method(watch: Watch, owner: str, name: str, _: str) -> None:
    watch.names += looked_up(tensor_class(owner), name)


def watch_special_names(watch: Watch, module: str, name: str, _: str) -> None:
    found: Any = look_up(module, name)
    if isinstance(found, type) and not is_covered_class(found):
        watch_name(watch, module, name)
        watch.with_mro[id(found)] = found
    for cls in getattr(found, "__mro__", ()):
        for owner, names in special_names(cls):
            watch.names.append((owner, names))
            watch.add_nameless(owner, names)
    if found is torch.Tensor:  # what Dynamo answers itself, such as `size`, may be patched
        members = body_of(torch.Tensor)
        watch.names.append((torch.Tensor, members))
        watch.whole.append((torch.Tensor, frozenset(members)))


def watch_members(watch: Watch, module: str, name: str, _: str) -> None:
    watch_name(watch, module, name)
    cls: Any = look_up(module, name)
    watch.names += looked_up(cls, "_missing_")
    watch.add_functions(functions_of_method(missing(cls)))


def watch_subclass(watch: Watch, module: str, name: str, said: str) -> None:
    for cls, home, path in zip(pair_of(module, name), *names_of_pair(module, name), strict=True):
        if not is_covered_class(cls):
            watch_name(watch, home, path)
    if said:
        watch.subclasses.append((*pair_of(module, name), said == "True"))
    else:  # the class does not say, as a TypedDict
        watch.asked_again.append(lambda: is_subclass(module, name) == said)


def watch_group(watch: Watch, module: str, name: str, ranks: str) -> None:
    watch.asked_again.append(lambda: group_ranks(module, name) == ranks)


def watch_answer(watch: Watch, module: str, name: str, answer: str) -> None:
    """Eager calls the function at each call too."""
    watch.asked_again.append(lambda: constant_answer(module, name) == answer)


def watch_contents(watch: Watch, module: str, name: str, _: str) -> None:
    from npugx_cache.conditions.contents import Contents

    read = Contents.under(module, name)
    watch_name(watch, module, name)
    watch.contents.append(read)
    if read.body is not None:
        members = body_of(read.body)
        watch.whole.append((read.body, frozenset(members)))
        watch.names.append((read.body, members))
        watch.with_mro[id(read.body)] = read.body


def watch_operator(watch: Watch, namespace: str, name: str, was: str) -> None:
    watch.operators.append((namespace, name, was))


def watch_nothing(*_: object) -> None:
    """What the fact is about does not change while a process lives."""


def special_names(cls: type) -> Iterator[Row]:
    """The row for what a class defines for Python's own syntax, if user code may define that."""
    if is_watched_for_patches(cls):
        members = vars(cls)
        defined = {name: members.get(name, ABSENT) for name in SPECIAL & members.keys()}
        yield cls, _NOTHING_SPECIAL | defined


_NOTHING_SPECIAL = dict.fromkeys(SPECIAL, ABSENT)
