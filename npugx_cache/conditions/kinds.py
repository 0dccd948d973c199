"""The kinds of conditions: one row each, with all forms in which a condition of the kind is needed.

A condition is a kind, a node and an argument (`data.Check`). Its row in `KINDS` has

- `test`, which decides whether the condition holds of the live value at the node;
- `python`, the condition as Python, for people;
- `native`, the same test as a guard on torch's C++ managers, for calls after the first. What C++
  can't test with exactly the same meaning raises `LeftToPython`, and is tested in Python;
- `reason`, what to say when the condition does not hold, if "no longer true" is not good enough;
- `watch`, for facts about code: what to watch between two calls instead of testing again;
- `bulk`, the test of many conditions in one loop, for kinds of which a model has thousands.

Conditions on the call as a whole have no value at a node: `test` gets the values of all nodes, and
`nodes` and `moved` say which nodes the argument names. They are tested after the others, but for
those `before` any value is read.

A new kind is a number in `data.Kind` and a row here.
"""

from __future__ import annotations

import gc
import itertools
import operator
import sys
import types
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from npugx_cache.conditions import code_watch, shapes, source_facts
from npugx_cache.conditions.code_watch import Watch
from npugx_cache.conditions.cpp_paths import (
    CHILDREN,
    DICTS,
    MODULE_GETATTR,
    SEQUENCES,
    LeftToPython,
    gives_children,
)
from npugx_cache.conditions.data import Check, Kind, TensorFact
from npugx_cache.conditions.evaluate import MISSING
from npugx_cache.portable import (
    NotPortable,
    decode,
    describe,
    devices,
    encode,
    encoded_keys,
    expression,
    has_body,
    identity,
    is_covered_class,
    is_named,
    ordered_keys,
    same,
    seal,
)
from npugx_cache.portable.devices import Accelerator
from npugx_cache.private import guard_managers, runtime
from npugx_cache.private.guard_managers import REASON
from npugx_cache.records import NamedTuple, dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence

    from npugx_cache.conditions.cpp_paths import Managers
    from npugx_cache.conditions.data import Conditions
    from npugx_cache.conditions.explain import Wording
    from npugx_cache.portable import Plain

    Rows = Sequence[tuple[int, Any]]
    Values = Sequence[Any]


# What arguments of checks stand for, made ready for repeated tests.


class Identity:
    """A recorded identity, and the live classes that were found to have it.

    Such a class was compared in full once, and is compared by `is` afterwards. A class that no name
    leads to was compared by its body, which can be edited in place: `watch_of` watches the body.
    """

    __slots__ = ("_bodies", "known", "of_body", "plain")

    def __init__(self, plain: Plain) -> None:
        self.plain, self.of_body = plain, has_body(plain)
        self.known: object = MISSING
        self._bodies: dict[int, tuple[type, Watch]] = {}

    def is_of(self, live: object) -> bool:
        if live is self.known:
            return True
        if self.of_body and isinstance(live, type):
            return self.watch_of(live) is not None
        try:
            found = bool(identity(live) == self.plain)
        except NotPortable:
            return False
        # A function can be edited in place (__code__, __defaults__): never remembered as equal.
        if found and isinstance(live, type):
            if self.known is not MISSING and not is_covered_class(live):
                return False  # bound anew under its name: the facts are those of the known class
            self.known = live
        return found

    def watch_of(self, cls: type) -> Watch | None:
        """What tells whether a class still has this identity; None if it has another one."""
        known = self._bodies.get(id(cls))
        if known is not None and known[1].is_unchanged():
            return known[1]
        try:
            watch = Watch((), [cls])  # before the comparison, so that it sees an edit meanwhile
            found = bool(identity(cls) == self.plain)
        except NotPortable:
            return None
        if not found:
            return None
        kept = list(self._bodies.items())[1 - _MAX_CLASSES :]
        self._bodies = {**dict(kept), id(cls): (cls, watch)}  # a new one, because threads read it
        return watch


_MAX_CLASSES = 128
"""Of one identity: a function that makes a class at every call must not keep them all alive."""


class LiveTensorFact(NamedTuple):
    """A `TensorFact` with torch's own objects in it."""

    type: Identity
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    dispatch_keys: int
    size: tuple[int | None, ...]
    stride: tuple[int | None, ...]
    static: bool
    marks: dict[str, frozenset[int]]

    @classmethod
    def of(cls, fact: TensorFact, idents: Sequence[Identity]) -> LiveTensorFact:
        return cls(
            idents[fact.type],
            decode(["torch", fact.dtype]),
            torch.device(fact.device),
            fact.requires_grad,
            fact.dispatch_keys,
            fact.size,
            fact.stride,
            None not in fact.size and None not in fact.stride,
            {name: frozenset(dims) for name, dims in fact.marks},
        )

    def layout_matches(self, value: torch.Tensor) -> bool:
        if self.static:
            return value.shape == self.size and value.stride() == self.stride
        return (
            value.dim() == len(self.size)
            and all(
                want is None or want == n for want, n in zip(self.size, value.shape, strict=True)
            )
            and all(
                want is None or want == n
                for want, n in zip(self.stride, value.stride(), strict=True)
            )
        )

    def marks_match(self, value: torch.Tensor) -> bool:
        """A tensor may ask for fewer dynamic dimensions than were traced, never for others."""
        live = value.__dict__
        if not live:
            return True
        return all(
            live[name] <= self.marks.get(name, frozenset())
            for name in runtime.DIMENSION_MARKS
            if name in live
        )


class Place:
    """The accelerator that must be current in the thread of a call.

    An entry may say "the current device". When the entry is bound, that becomes the device that is
    current then, and stays that device. In a thread with another current device, or after
    `set_device`, the entry is bound once more.
    """

    def __init__(self, kind: str, index: int | None, why: str) -> None:
        self.device = Accelerator(kind, index, why)
        self._index = index if runtime.accelerator() == kind else None

    def is_current(self) -> bool:
        return self._index is not None and torch.accelerator.current_device_index() == self._index

    def reason(self) -> str:
        if self._index is None:
            return f"there is no {self.device.kind} here"
        why = f", which it must be: {self.device.why}" if self.device.why else ""
        return f"{self.device.name} is not the current device{why}"


def is_imported(name: str) -> bool:
    """Whether a module is imported, and not just about to be: by this thread, or by another."""
    module = sys.modules.get(name)
    specification = getattr(module, "__spec__", None)
    return module is not None and not getattr(specification, "_initializing", False)


THREADS = "num_threads"


def live_state() -> dict[str, object]:
    """`runtime.global_state` without the number of threads, which is guarded on its own."""
    state = runtime.global_state()
    state.pop(THREADS, None)
    return state


class LiveArguments:
    """Makes arguments of checks ready. Raises anything for those that make no sense."""

    def __init__(self, tree: Conditions) -> None:
        self._idents = tuple(map(Identity, tree.idents))
        self._tensors = tuple(LiveTensorFact.of(fact, self._idents) for fact in tree.tensors)
        self.compare_bodies = any(ident.of_body for ident in self._idents)

    def watch_of(self, ident: int, cls: object) -> Watch | None:
        """What tells that a class whose body was compared is as it was. None: no body was.

        Raises `LeftToPython` if the class has another identity by now.
        """
        if not self._idents[ident].of_body or not isinstance(cls, type):
            return None
        watch = self._idents[ident].watch_of(cls)
        if watch is None:
            raise LeftToPython("the class was edited")
        return watch

    def of(self, kind: Kind, args: Sequence[Any]) -> Sequence[Any]:
        if kind is Kind.TYPE or kind is Kind.IDENTITY:
            return [self._idents[arg] for arg in args]
        if kind is Kind.TENSOR:
            return [self._tensors[arg] for arg in args]
        if kind is Kind.SHAPE:
            return [shapes.prepare(arg) for arg in args]
        return [Place(*arg) for arg in args] if kind is Kind.DEVICE else args


# --- tests


def _tensor_matches(value: Any, fact: LiveTensorFact) -> bool:
    live = type(value)
    if not isinstance(value, torch.Tensor) or not (
        live is fact.type.known or fact.type.is_of(live)
    ):
        return False
    if live is torch.Tensor or live is torch.nn.Parameter:
        return _metadata_matches(value, fact)
    with runtime.without_torch_function():
        return _metadata_matches(value, fact)


def _metadata_matches(value: torch.Tensor, fact: LiveTensorFact) -> bool:
    return (
        value.dtype is fact.dtype
        and value.device == fact.device
        and value.requires_grad is fact.requires_grad
        and fact.layout_matches(value)
        and runtime.dispatch_keys(value).raw_repr() == fact.dispatch_keys
        and fact.marks_match(value)
    )


def _types_match(rows: Rows, values: Values) -> bool:
    for node, ident in rows:
        live = type(values[node])
        if live is not ident.known and not ident.is_of(live):
            return False
    return True


def _attributes_absent(rows: Rows, values: Values) -> bool:
    spaces = [values[node].__dict__ for node, _ in rows]
    return all(map(_KEYS.isdisjoint, map(dict.keys, spaces), map(operator.itemgetter(1), rows)))


_KEYS: Any = type({}.keys())


def _are_unshadowed(rows: Rows, values: Values) -> bool:  # noqa: C901 - calls would cost more
    """Whether modules give parameters, buffers and modules of these names from their dicts.

    `module.name` comes to something else as soon as somebody writes the name to `module.__dict__`,
    as `object.__setattr__` does, to the class, or to a dict that `nn.Module` looks at earlier, and
    when the class gets a `__getattr__` of its own.
    """
    of_classes: dict[type, set[str]] = {}
    for node, names in rows:
        module = values[node]
        own = module.__dict__
        cls: Any = type(module)
        parameters, buffers, modules, own_getattr = names
        looks = cls.__getattr__
        if not (own_getattr or looks is MODULE_GETATTR or gives_children(looks)):
            return False
        if cls not in of_classes:
            of_classes[cls] = set()
        of_classes[cls].update(parameters, buffers, modules)
        for name in parameters:
            if name in own:
                return False
        if buffers or modules:
            held = own.get("_parameters") or ()
            for name in (*buffers, *modules):
                if name in own or name in held:
                    return False
        if modules:
            held = own.get("_buffers") or ()
            for name in modules:
                if name in held:
                    return False
    return all(_hides_none(cls, names) for cls, names in of_classes.items())


def _hides_none(cls: Any, names: set[str]) -> bool:
    if cls.__getattribute__ is not object.__getattribute__:
        return False
    return all(names.isdisjoint(base.__dict__) for base in cls.__mro__)


def _lengths_match(rows: Rows, values: Values) -> bool:
    lengths = map(len, map(values.__getitem__, map(operator.itemgetter(0), rows)))
    return all(map(operator.eq, lengths, map(operator.itemgetter(1), rows)))


def _equals(value: object, arg: Plain) -> bool:
    found = value if type(value) is str or value is None else encode(value)
    return bool(found == arg) or same(found, arg)


def _has_keys(value: Any, arg: Any) -> bool:
    keys = ordered_keys(value)
    # All of them str and those of `arg`: nothing has to be encoded. The types first, because a
    # number of NumPy's beside a list gives an array, which is neither true nor false.
    are_names = _ONLY_STR.issuperset(map(type, keys)) and bool(keys == arg[1])
    return are_names or same(encoded_keys(value, list), arg)


_ONLY_STR = frozenset({str})


def _lacks_key(value: Any, key: Plain) -> bool:
    """Of a class to which no name leads: whether no key is such a class, as a pytree may have."""
    if not _is_class_without_name(key):
        return decode(key) not in value
    return not any(_is_class_like(each, key[1]) for each in list(value))


def _is_class_like(value: object, class_identity: Any) -> bool:
    """Whether it is a class to which no name leads and which has the same body, module and name.

    The name comes first: a call may ask it of each class in a registry, and a body takes long.
    """
    if not isinstance(value, type):
        return False
    if type(value) is type and [value.__module__, value.__qualname__] != class_identity[1:3]:
        return False
    return not is_named(value) and bool(identity(value) == class_identity)


def _is_class_without_name(key: Plain) -> bool:
    """Whether a class is told by what is in it."""
    return isinstance(key, list) and key[0] == "id" and has_body(key[1])


def iterator_state(value: Any) -> Plain:
    """What is left in a tuple, range or count iterator, without advancing it."""
    if type(value) is type(iter(())):
        return ["left", operator.length_hint(value)]
    if type(value) is itertools.count:  # since Python 3.14 it has no __reduce__
        held = [each for each in gc.get_referents(value) if each is not itertools.count]
        if not {int, float}.issuperset(map(type, held)):  # their texts may be those of others
            raise NotPortable(f"{value!r} counts by other things than plain numbers")
        return repr(value)
    return encode(list(value.__reduce__()[1:]))


def attribute_names(value: Any) -> list[str]:
    """The names in the `__dict__` of an object, without the marks that Dynamo sets on tensors."""
    return sorted(name for name in value.__dict__ if not name.startswith("_dynamo_"))


# --- guards on C++ managers; `value` is the live value at the node


def _native_equals(made: Managers, node: int, value: Any, _: Plain) -> None:
    if value is None or type(value) in (bool, torch.dtype, _CODE_TYPE):
        made.guard_identity(made.of(node), value)
    elif type(value) in (str, int, torch.device) or _is_plain_float(value):
        made.pin_type(node)
        made.of(node).add_equals_match_guard(value, *REASON)
    else:
        raise LeftToPython("equality")


_CODE_TYPE: type[types.CodeType] = type((lambda: None).__code__)


def _is_plain_float(value: object) -> bool:
    """Whether `==` tells a float from every other: not so for 0.0, -0.0 and nan."""
    return type(value) is float and bool(value) and value == value  # noqa: PLR0124


def _native_tensor(made: Managers, node: int, value: Any, arg: Any) -> None:
    fact, manager = made.tree.tensors[arg], made.of(node)
    made.pin_type(node)
    manager.add_tensor_match_guard(
        value,
        list(fact.size),
        list(fact.stride),
        str(node),
        *REASON,
        type(value),
        runtime.dispatch_keys(value),
    )
    guard_managers.forbid_dimension_marks(manager, value, str(node), made.kind)


def _native_length(made: Managers, node: int, value: Any, length: Any) -> None:
    manager = made.of(node)
    if type(value) in DICTS:
        manager.add_dict_length_check_guard(length, *REASON)
    elif type(value) in SEQUENCES:
        made.pin_type(node)
        manager.add_length_check_guard(length, *REASON)
    else:
        raise LeftToPython("length")


def _native_absent(made: Managers, node: int, _value: Any, names: Any) -> None:
    space = made.instance_dict(node)
    for name in names:
        space.add_dict_contains_guard(False, name, *REASON)


def _absent_as_python(_: Wording, path: str, names: Any) -> str:
    return " and ".join(f"{name!r} not in {path}.__dict__" for name in names)


def _native_has(made: Managers, node: int, value: Any, name: Any) -> None:
    # That the manager finds a value is the check.
    made.attribute(made.of(node), name, getattr(value, name), f"{node}.{name}")


def _native_unshadowed(made: Managers, node: int, _value: Any, names: Any) -> None:
    for table, those in zip(CHILDREN, names[:3], strict=True):
        for name in those:
            made.guard_against_shadows(node, name, table)


def _native_membership(
    made: Managers, node: int, value: Any, key: Plain, *, expected: bool
) -> None:
    if type(value) not in DICTS or _is_class_without_name(key):
        raise LeftToPython("membership")
    made.pin_type(node)
    made.of(node).add_dict_contains_guard(expected, decode(key), *REASON)


def _native_keys(made: Managers, node: int, value: Any, arg: Any) -> None:
    if type(value) not in DICTS or arg[1]:
        raise LeftToPython("keys in order")
    made.pin_type(node)
    made.of(node).add_dict_length_check_guard(0, *REASON)


def _native_same(made: Managers, _: int, _value: Any, pair: Any) -> None:
    a, b = map(made.of, pair)
    guard_managers.require_aliasing(a, b, *REASON)


def _native_different(made: Managers, _: int, _value: Any, group: Any) -> None:
    managers = list(map(made.of, group))
    if len(managers) > 1:
        guard_managers.forbid_aliasing(managers, list(map(str, group)), *REASON)


def _left_to_python(*_: Any) -> None:
    raise LeftToPython


def _nothing_in_cpp(*_: Any) -> None:
    """For what `NativeCheck` compares at once (torch's state), and for what is watched."""


# --- reasons; `live` is the live value, or the values of all nodes


def _state_reasons(_: Wording, _path: str, recorded: Any, _live: Any) -> Iterator[str]:
    from npugx_cache.conditions import torch_state  # a hit has no reasons to word

    yield from torch_state.differences(recorded, live_state())


def _different_reasons(words: Wording, _: str, group: Any, values: Any) -> Iterator[str]:
    seen: dict[int, int] = {}
    for node in group:
        other = seen.setdefault(id(values[node]), node)
        if other != node:
            what = "tensors" if isinstance(values[node], torch.Tensor) else "objects"
            yield f"{words.path(node)} and {words.path(other)} were different {what}"


def _shape_reason(words: Wording, _: str, condition: Any, values: Any) -> str:
    text = shapes.wording(condition, words.path)
    for node, number in shapes.equalities(condition):
        path = words.path(node)
        if text == f"{path} == {number}":  # the condition says nothing else
            return f"{path} was {number}, is {values[node]!r}"
    return f"no longer true: {text}"


def _device_as_python(_: Wording, _path: str, device: Any) -> str:
    _, index, why = device
    name = Accelerator(*device).name
    return "" if index is None else f"current_device() == {name!r}  # {why}".rstrip("# ")


def _tensor_reason(words: Wording, path: str, arg: Any, live: Any) -> str:
    from npugx_cache.conditions.explain import tensor_difference

    with runtime.without_torch_function():
        return f"{path}: {tensor_difference(words, arg, live)}"


def _shadow_words(_: Wording, path: str, names: Any, live: Any) -> str:
    own = getattr(live, "__dict__", {})
    for place, (table, those) in enumerate(zip(CHILDREN, names[:3], strict=True)):
        for name in those:
            for where in ("__dict__", *CHILDREN[:place]):
                if name in (own if where == "__dict__" else own.get(where) or ()):
                    return f"{path}.{table}[{name!r}] is hidden by {path}.{where}[{name!r}]"
            for base in type(live).__mro__:
                if name in vars(base):
                    return f"{path}.{table}[{name!r}] is hidden by {base.__qualname__}.{name}"
    given = getattr(type(live), "__getattr__", None)
    if not (names[3] or gives_children(given)):
        return f"{type(live).__qualname__} gives attributes of {path} by a __getattr__ of its own"
    return f"{path} was a module that gives attributes as nn.Module does"


def _attributes_words(live: Any) -> str:
    return ", ".join(attribute_names(live)) if hasattr(live, "__dict__") else "none"


def _length_words(live: Any) -> object:
    return len(live) if hasattr(live, "__len__") else "without a length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All forms of one kind; the docstring of the module says what they are for."""

    test: Callable[[Any, Any], bool]
    python: Callable[[Wording, str, Any], str]
    native: Callable[[Managers, int, Any, Any], None]
    reason: Callable[[Wording, str, Any, Any], str | Iterator[str]] | None = None
    bulk: Callable[[Rows, Values], bool] | None = None
    watch: Callable[..., None] | None = None
    before: bool = False
    """Whether the condition is tested before any value of the call is read."""
    nodes: Callable[[Any], Collection[int]] = lambda _: ()
    moved: Callable[[Any, Mapping[int, int]], Any] = lambda arg, _: arg
    """The argument for another numbering of nodes; KeyError if it needs one that is left out."""
    sealed: Callable[[Any, Container[object]], Any] | None = None
    """The argument as it is stored: without texts that are only compared and are not known."""
    revealed: Callable[[Any, Any], Any] = lambda _, arg: arg
    """The argument with live texts in the place of sealed ones, for a value of which it holds."""


def _fact(
    now: Callable[[str, str], str],
    what: str,
    watch: Callable[..., None],
    place: Callable[[str, str], str] = lambda *_: "",
) -> Row:
    """A source fact: `now` reads again what was recorded, and `what` says in words what that is.

    `place` says where a person finds what the fact is about.
    """

    def bulk(rows: Rows, _: Values) -> bool:
        return all(now(fact[0], fact[1]) == fact[2] for _, fact in rows)

    def reason(_: Wording, _path: str, fact: Any, _live: Any) -> str:
        module, name, _was = fact
        try:
            now(module, name)
        except NotPortable as error:
            return f"source of {module}.{name} can't be checked: {error}"
        return f"{what} {module}.{name} changed {place(module, name)}".rstrip()

    return Row(
        test=lambda _, fact: now(fact[0], fact[1]) == fact[2],
        bulk=bulk,
        python=lambda _, _path, fact: f"{now.__name__}({'.'.join(fact[:2])!r}) == {fact[2]!r}",
        native=_nothing_in_cpp,
        reason=reason,
        watch=watch,
    )


def _providers_match(_: object, fact: Any) -> bool:
    return source_facts.providers(fact[0], fact[1], fact[2::2]) == [*fact[3::2]]


def _lookups_as_python(_: Wording, _path: str, fact: Any) -> str:
    asked = f"providers({fact[0]!r}, {fact[1]!r}, [{{!r}}]) == ({{!r}},)"
    return "\n".join(map(asked.format, fact[2::2], fact[3::2]))


def _lookup_reasons(_: Wording, _path: str, fact: Any, _live: Any) -> Iterator[str]:
    module, qualname = fact[:2]
    try:
        now = source_facts.providers(module, qualname, fact[2::2])
    except NotPortable as error:
        yield f"source of {module}.{qualname} can't be checked: {error}"
    else:
        for name, was, found in zip(fact[2::2], fact[3::2], now, strict=True):
            if found != was:
                yield f"where to find {module}.{qualname}.{name} changed"


def _make_reveal(read: Callable[[Any], Plain]) -> Callable[[Any, Any], Plain]:
    def reveal_texts(value: Any, arg: Plain) -> Plain:
        live = read(value)
        # Compared again: another thread may have changed a dict meanwhile.
        return live if same(live, arg) else arg

    return reveal_texts


def _lacks_key_as_python(_: Wording, path: str, key: Plain) -> str:
    if _is_class_without_name(key):
        return f"{path} has no class like {describe(key)}, told by its body alone"
    return f"{describe(key)} not in {path}"


def _type_words(words: Wording, path: str, ident: int, live: object) -> str:
    from npugx_cache.conditions.explain import type_name

    was, now = words.ident(ident), type_name(live)
    if was == now:  # no name leads to the class, and its members were compared
        return f"the class {now} of {path} has other members or bases"
    return f"type({path}) was {was}, is {now}"


def _identity_words(words: Wording, path: str, ident: int, live: object) -> str:
    was, now = words.ident(ident), words.live(live)
    if was != now:
        return f"{path} was {was}, is {now}"
    if isinstance(live, type):  # no name leads to the class, and its members were compared
        return f"the class {now} at {path} has other members or bases"
    return f"{now} at {path} has {_other_parts(words.ident_at(ident), live)}"


def _other_parts(recorded: Plain, live: object) -> str:
    """How an object differs from the recorded one, where both are shown by the same name."""
    if isinstance(live, types.FunctionType) and isinstance(recorded, list):
        found = cast("list[Plain]", identity(live))
        parts = zip(_PARTS_OF_A_FUNCTION, recorded, found, strict=True)
        differ = [name for name, was, now in parts if was != now]
        return f"other {' and '.join(differ)}"
    return "the same name and other contents"


_PARTS_OF_A_FUNCTION = (
    "kind",
    "module",
    "name",
    "code",
    "defaults",
    "defaults of keywords",
    "captured values",
    "globals",
)
"""What the items of `portable.identity` of a function are."""


def _equality_words(words: Wording, path: str, recorded: Plain, live: object) -> str:
    was, now = describe(recorded), words.live(live)
    if was == now:
        from npugx_cache.conditions.explain import type_name

        return f"{path} is not what it was, though both are shown as {now}: {type_name(live)}"
    return f"{path} was {was}, is {now}"


def _set_order() -> types.ModuleType:
    from npugx_cache.conditions import set_order  # few graphs walk a set

    return set_order


KINDS: dict[Kind, Row] = {
    Kind.TYPE: Row(
        test=lambda value, ident: ident.is_of(type(value)),
        bulk=_types_match,
        native=lambda made, node, *_: made.pin_type(node),
        python=lambda words, path, arg: f"type({path}) is {words.ident(arg)}",
        reason=_type_words,
    ),
    Kind.IDENTITY: Row(
        test=lambda value, ident: ident.is_of(value),
        native=lambda made, node, *_: made.pin_identity(node),
        python=lambda words, path, arg: f"{path} is {words.ident(arg)}",
        reason=_identity_words,
    ),
    Kind.EQUALS: Row(
        test=_equals,
        native=_native_equals,
        python=lambda _, path, arg: f"{path} == {expression(arg)}",
        reason=_equality_words,
        sealed=seal,
        revealed=_make_reveal(encode),
    ),
    Kind.TENSOR: Row(
        test=_tensor_matches,
        native=_native_tensor,
        python=lambda words, path, arg: f"check_tensor({path}, {words.tensor(arg)})",
        reason=_tensor_reason,
    ),
    Kind.LENGTH: Row(
        test=lambda value, length: len(value) == length,
        bulk=_lengths_match,
        native=_native_length,
        python=lambda _, path, arg: f"len({path}) == {arg}",
        reason=lambda _, path, arg, live: f"len({path}) was {arg}, is {_length_words(live)}",
    ),
    Kind.ABSENT_ATTRS: Row(
        test=lambda value, names: value.__dict__.keys().isdisjoint(names),
        bulk=_attributes_absent,
        native=_native_absent,
        python=_absent_as_python,
        reason=lambda words, path, names, live: _absent_as_python(
            words, path, [name for name in names if name in getattr(live, "__dict__", names)]
        ),
    ),
    Kind.HAS_ATTR: Row(
        test=hasattr,
        native=_native_has,
        python=lambda _, path, arg: f"hasattr({path}, {arg!r})",
    ),
    Kind.LACKS_ATTR: Row(
        test=lambda value, name: not hasattr(value, name),
        native=_left_to_python,  # C++ takes any exception for an absence
        python=lambda _, path, arg: f"not hasattr({path}, {arg!r})",
    ),
    Kind.CONTAINS: Row(
        test=lambda value, key: decode(key) in value,
        native=partial(_native_membership, expected=True),
        python=lambda _, path, arg: f"{describe(arg)} in {path}",
    ),
    Kind.NOT_CONTAINS: Row(
        test=_lacks_key,
        native=partial(_native_membership, expected=False),
        python=_lacks_key_as_python,
    ),
    Kind.KEYS: Row(
        test=_has_keys,
        native=_native_keys,
        python=lambda _, path, arg: f"list({path}) == {expression(arg)}",
        sealed=seal,
        revealed=_make_reveal(lambda value: encoded_keys(value, list)),
    ),
    Kind.KEY_SET: Row(
        test=lambda value, arg: same(encoded_keys(value, set), arg),
        native=_native_keys,
        python=lambda _, path, arg: f"set({path}) == {expression(arg)}",
        sealed=seal,
        revealed=_make_reveal(lambda value: encoded_keys(value, set)),
    ),
    Kind.NOT_NONE: Row(
        test=lambda value, _: value is not None,
        native=lambda made, node, *_: made.of(node).add_not_none_guard(*REASON),
        python=lambda _, path, _arg: f"{path} is not None",
    ),
    Kind.ITERATOR: Row(
        test=lambda value, arg: iterator_state(value) == arg,
        native=_left_to_python,
        python=lambda _, path, arg: f"remaining({path}) == {describe(arg)}",
    ),
    Kind.ATTRIBUTES: Row(
        test=lambda value, names: attribute_names(value) == names,
        native=_left_to_python,
        python=lambda _, path, names: f"attribute_names({path}) == {names}",
        reason=lambda _, path, names, live: (
            f"the attributes of {path} were {', '.join(names)}; are {_attributes_words(live)}"
        ),
    ),
    Kind.UNSHADOWED: Row(
        test=lambda value, names: _are_unshadowed([(0, names)], [value]),
        bulk=_are_unshadowed,
        native=_native_unshadowed,
        python=lambda _, path, names: f"unshadowed({path}, {names[:3]})",
        reason=_shadow_words,
    ),
    # --- the call as a whole
    Kind.SAME: Row(
        test=lambda values, pair: values[pair[0]] is values[pair[1]],
        native=_native_same,
        python=lambda words, _, pair: " is ".join(map(words.path, pair)),
        reason=lambda words, _, pair, _v: f"{' and '.join(map(words.path, pair))} were one object",
        nodes=frozenset,
        moved=lambda pair, place: [place[node] for node in pair],
    ),
    Kind.DIFFERENT: Row(
        test=lambda values, group: len({id(values[node]) for node in group}) == len(group),
        native=_native_different,
        python=lambda words, _, group: f"all_distinct({', '.join(map(words.path, group))})",
        reason=_different_reasons,
        nodes=frozenset,
        moved=lambda group, place: [place[node] for node in group if node in place],
    ),
    Kind.SHAPE: Row(
        test=lambda values, condition: bool(condition(values)),
        native=_left_to_python,
        python=lambda words, _, condition: shapes.wording(condition, words.path),
        reason=_shape_reason,
        nodes=shapes.nodes_in,
        moved=shapes.renumber_nodes,
    ),
    Kind.ORDER: Row(
        test=lambda values, condition: _set_order().holds(condition, values),
        native=_left_to_python,
        python=lambda words, _, condition: _set_order().as_python(condition, words.path),
        reason=lambda words, _, condition, values: _set_order().failure(condition, values, words),
        nodes=lambda condition: _set_order().nodes_in(condition),
        moved=lambda condition, numbers: _set_order().renumber_nodes(condition, numbers),
        sealed=lambda condition, known: _set_order().seal_texts(condition, known),
        revealed=lambda values, condition: _set_order().reveal_texts(condition, values),
    ),
    Kind.STATE: Row(
        test=lambda _, state: live_state() == state,
        native=_nothing_in_cpp,
        python=lambda _, _path, state: "\n".join(
            f"torch_state[{name!r}] == {value!r}" for name, value in sorted(state.items())
        ),
        reason=_state_reasons,
        before=True,
    ),
    Kind.THREADS: Row(
        test=lambda _, count: torch.get_num_threads() == count,
        native=_nothing_in_cpp,
        python=lambda _, _path, count: f"torch.get_num_threads() == {count}",
        reason=lambda _, _path, count, _live: (
            f"torch.get_num_threads() was {count}, is {torch.get_num_threads()}"
        ),
        before=True,
    ),
    Kind.DEVICE: Row(
        test=lambda _, place: place.is_current(),
        native=_left_to_python,
        python=_device_as_python,
        reason=lambda _, _path, device, _live: Place(*device).reason(),
        before=True,
    ),
    Kind.IMPORT: Row(
        test=lambda _, name: is_imported(name),
        native=_nothing_in_cpp,
        python=lambda _, _path, name: f"{name!r} in sys.modules",
        reason=lambda _, _path, name, _live: f"the module {name} is not imported yet",
        before=True,
    ),
    # --- source facts
    Kind.FUNCTION: _fact(
        source_facts.function_hash,
        "source of",
        code_watch.watch_function,
        source_facts.function_place,
    ),
    Kind.METHOD: _fact(
        source_facts.method_hash, "source of", code_watch.watch_method, source_facts.method_place
    ),
    Kind.FILE: _fact(source_facts.file_hash, "source of", code_watch.watch_nothing),
    Kind.OPERATOR: _fact(
        source_facts.operator_schema, "schema of operator", code_watch.watch_nothing
    ),
    Kind.LOOKUP: Row(
        test=_providers_match,
        bulk=lambda rows, _: all(itertools.starmap(_providers_match, rows)),
        python=_lookups_as_python,
        native=_nothing_in_cpp,
        reason=_lookup_reasons,
        watch=code_watch.watch_lookups,
    ),
    Kind.CLASS_VALUE: _fact(source_facts.class_value, "the value of", code_watch.watch_name),
    Kind.FUNCTION_VALUE: _fact(
        source_facts.function_value, "the value of", code_watch.watch_function_value
    ),
    Kind.OPERATOR_RULES: _fact(
        source_facts.operator_rules, "what is registered for operator", code_watch.watch_operator
    ),
    Kind.CONTENTS: _fact(source_facts.contents_hash, "what is in", code_watch.watch_contents),
    Kind.TENSOR_METHOD: _fact(
        source_facts.tensor_method, "code of", code_watch.watch_tensor_method
    ),
    Kind.GROUP: _fact(source_facts.group_ranks, "ranks of process group", code_watch.watch_group),
    Kind.ANSWER: _fact(source_facts.constant_answer, "the answer of", code_watch.watch_answer),
    Kind.SUBCLASS: _fact(source_facts.is_subclass, "the answer to", code_watch.watch_subclass),
    Kind.MEMBERS: _fact(source_facts.members_hash, "a member of", code_watch.watch_members),
    Kind.SPECIAL_NAMES: _fact(
        source_facts.special_hash, "the special methods of", code_watch.watch_special_names
    ),
}


def in_order(tree: Conditions) -> list[Check]:
    """All conditions, in the order in which they are printed: those about code first."""

    def place(check: Check) -> tuple[bool, bool]:
        row = KINDS[check.kind]
        return row.watch is None, not row.before

    return sorted(tree.all_checks(), key=place)


def lines(tree: Conditions, *, code: bool) -> Iterator[str]:
    """The conditions on code, or all others, as Python, for people to read."""
    from npugx_cache.conditions.explain import Wording

    words = Wording(tree)
    for node, kind, arg in in_order(tree):
        row = KINDS[kind]
        if code is (row.watch is not None):
            yield from row.python(words, words.path(node), arg).splitlines()


def seal_conditions(tree: Conditions, known: Container[object]) -> Conditions:
    """Conditions as they are stored: without the texts that are only compared.

    `known` texts stay. So do names, keys that lead to a value, and members that are looked for.
    """
    checks = dict(tree.checks)
    for kind, (nodes, args) in tree.checks.items():
        seal_of = KINDS[kind].sealed
        if seal_of is not None:
            checks[kind] = nodes, tuple(seal_of(arg, known) for arg in args)
    return replace(tree, checks=checks)


def placed_here(tree: Conditions) -> Conditions:
    """The conditions of a stored entry with the current device's index in them."""
    device = tree.device
    if device is None or device.index is not None:
        return tree
    index = runtime.current_index(device.kind)
    return tree.place_on_device(replace(device, index=index), devices.at(index))
