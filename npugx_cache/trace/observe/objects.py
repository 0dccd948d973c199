"""What Dynamo reads without a guard, given one or noted.

Each of these reads was seen to give a wrong result after a change (`tests/soundness/rows`):

- a key that is not there, where the code catches the KeyError;
- a dict that is used as a whole: `[*d]`, `str(d)`, a dict in a call that is folded;
- the `__dict__` of an object, which Dynamo guards only by what is read from it;
- `isinstance`, `issubclass` and `callable`: classes are edited, and registered with others;
- whether objects with an `__eq__` of their own are one key;
- whether a tensor is a view of another, and what a function marked `assume_constant_result` gave.

Importing this module loads the compiler.
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABCMeta
from collections import OrderedDict
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.variables import dicts, user_defined
from torch._guards import TracingContext

from npugx_cache.portable import ordered_keys
from npugx_cache.portable.pinned import is_covered_module

if TYPE_CHECKING:
    import traceback
    from collections.abc import Callable, Iterator


@dataclass
class Asked:
    """What the trace made inside asked of classes, and what it read that can't be guarded."""

    subclasses: set[tuple[type, type]] = field(default_factory=set)
    attributes: set[tuple[type, str]] = field(default_factory=set)
    classes: set[type] = field(default_factory=set)
    """Those that the trace met, or an object of theirs; their special methods count."""
    ordered_dicts: bool = False
    """Whether it read an OrderedDict, whose order torch's own guards don't see change."""
    moved_dicts: bool = False
    """Whether `move_to_end` had made one of them walk otherwise than Dynamo counts its keys."""
    raised: list[Any] = field(default_factory=list, compare=False)
    """The exceptions that Dynamo raised in the place of builtins."""
    unguardable: list[tuple[str, traceback.StackSummary]] = field(default_factory=list)
    unwatched: list[tuple[str, traceback.StackSummary]] = field(default_factory=list)
    """What this process can't see in traces, because of its torch."""
    walked_backwards: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """What `reversed()` gave or was given and what belongs to it, by the id of the former."""

    def refuse(self, what: str) -> None:
        """Note what can't be guarded, with the user's stack in the trace."""
        self.unguardable.append((what, TracingContext.extract_stack()))


_asked: ContextVar[Asked | None] = ContextVar("npugx_asked", default=None)


@contextlib.contextmanager
def guarded(noted: Asked) -> Iterator[None]:
    """Traces made inside get the missing guards, and what is asked in them is noted.

    The hooks must be in place (`hook_table`).
    """
    token = _asked.set(noted)
    try:
        yield
    finally:
        _asked.reset(token)


def refuse_unwatched(reason: str) -> None:
    """Note that the trace needs a hook that is missing."""
    asked = _asked.get()
    if asked is not None:
        asked.unwatched.append((reason, TracingContext.extract_stack()))


def asked() -> Asked | None:
    """What `guarded` yielded, where a trace is made inside."""
    return _asked.get()


# --- dicts


def guard_absent_key(self: Any, tx: Any, key: Any) -> None:
    if key not in self:
        self.install_dict_contains_guard(tx, [key])


def _guard_whole(value: Any) -> None:
    if isinstance(value, dicts.ConstDictVariable) and value.source:
        value.install_dict_keys_match_guard()


def guard_shown_dict(self: Any, tx: Any) -> None:
    del tx
    _guard_whole(self)


def at_method(
    method: Any, variable: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]
) -> None:
    """What the hooks on classes see, for a class of user code that inherits the method."""
    del method
    guard_extending_dict(variable, tx, name, args, kwargs)
    keep_moves(variable, tx, name, args, kwargs)


def guard_given_dicts(*args: Any, **kwargs: Any) -> None:
    """Of the arguments of any function, and of what makes an object of user code."""
    for each in (*args, *kwargs.get("init_args", ())):
        if hasattr(each, "realize"):
            _guard_whole(each.realize())


def keep_moves(self: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """What moved in a dict from outside is put there anew: Dynamo only replays new items."""
    del tx, args, kwargs
    if name == "move_to_end":
        self.should_reconstruct_all = True


def guard_extending_dict(
    self: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]
) -> None:
    if name == "extend":
        guard_dicts_in_list(self, tx, args, kwargs)


def guard_dicts_in_list(self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    del self, tx, kwargs
    for each in args:
        _guard_whole(each.realize())


def note_ordered(self: Any, value: object) -> None:
    del self
    asked = _asked.get()
    if asked is not None and isinstance(value, OrderedDict) and len(value) > 1:
        asked.ordered_dicts = True
        pairs = zip(ordered_keys(value), dict.keys(value), strict=True)
        # By identity: the `==` of a key may be the user's, or a tensor's.
        asked.moved_dicts |= any(walked is not counted for walked, counted in pairs)


def guard_object_keys(self: Any) -> None:
    if self.source:
        install_guard(self.source.make_guard(GuardBuilder.DICT_KEYS_MATCH))


def guard_object_key(self: Any, tx: Any, args: list[Any]) -> None:
    """By what is there before the call: attributes that the traced code sets don't count."""
    if not self.source:
        return
    del tx
    key = args[0]  # of `get` and `pop`, the default comes next
    if not key.is_python_constant():
        guard_object_keys(self)
        return
    name = key.as_python_constant()
    kinds = type(self)
    present = name in self.items.item_dict
    kind = kinds.CONTAINS_GUARD if present else kinds.NOT_CONTAINS_GUARD
    install_guard(self.source.make_guard(functools.partial(kind, key=name)))


def guard_copied_object_keys(
    self: Any, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]
) -> None:
    del tx, args, kwargs
    if name == "copy":
        guard_object_keys(self)


def refuse_object_dict(
    asked: Asked, variable: Any, obj: Any, name: str, *_: Any, **__: Any
) -> None:
    """Unless the trace itself made the object: then what it holds follows from the trace."""
    del variable
    if name == "__dict__" and obj.source:
        asked.refuse("with this torch the attributes in a __dict__ have no guard")


# --- classes and objects


def _both_covered(*classes: type) -> bool:
    return all(is_covered_module(cls.__module__) for cls in classes)


def _note_subclass(cls: type, others: Any) -> None:
    asked = _asked.get()
    for other in others if isinstance(others, tuple) else getattr(others, "__args__", (others,)):
        if isinstance(other, tuple):
            _note_subclass(cls, other)
        elif asked is None or not isinstance(other, type) or _both_covered(cls, other):
            continue
        elif type(other).__instancecheck__ in (type.__instancecheck__, ABCMeta.__instancecheck__):
            asked.subclasses.add((cls, other))
        else:
            what = f"isinstance with {other.__qualname__} runs code that is not traced"
            asked.refuse(what)


def note_isinstance(self: Any, tx: Any, value: Any, classes: Any) -> None:
    del self, tx
    _note_subclass(value.python_type(), classes.as_python_constant())


def note_issubclass(self: Any, tx: Any, cls: Any, classes: Any) -> None:
    del self, tx
    if cls.is_python_constant() and isinstance(cls.as_python_constant(), type):
        _note_subclass(cls.as_python_constant(), classes.as_python_constant())


def note_callable(self: Any, tx: Any, value: Any) -> None:
    del self, tx
    asked = _asked.get()
    if asked is not None and isinstance(value, user_defined.UserDefinedObjectVariable):
        asked.attributes.add((value.python_type(), "__call__"))


_IDENTICAL: Any = object.__eq__


def note_equality(self: Any, other: Any) -> None:
    """Of keys and elements: their own `__eq__` is not asked, or with some torch it is."""
    asked, kind = _asked.get(), user_defined.UserDefinedObjectVariable
    self, other = (getattr(each, "vt", each) for each in (self, other))  # of a key, or of its value
    if asked is None or not (isinstance(self, kind) and isinstance(other, kind)):
        return
    own = any(type(each.value).__eq__ is not _IDENTICAL for each in (self, other))
    if own and self.value is not other.value:
        what = f"{type(self.value).__qualname__} in a dict or a set is compared by identity"
        asked.refuse(what)


def note_tensor_attribute(self: Any, tx: Any, name: str) -> None:
    del self, tx
    asked = _asked.get()
    if asked is not None and name == "_base":
        asked.refuse("whether a tensor is a view of another has no guard")


def note_folded(tx: Any, function: Any, name: str, *rest: Any) -> None:
    del tx, function, rest
    asked = _asked.get()
    if asked is not None:
        asked.refuse(f"{name}() is assumed to give a constant")


# --- how the table puts them in place


def noting(note: Callable[..., None]) -> Callable[[Any], Any]:
    """Call `note` with what the trace asked and the arguments of a function before the function."""

    def look(*args: Any, **kwargs: Any) -> None:
        note(_asked.get(), *args, **kwargs)

    return before(look)


def before(look: Callable[..., None]) -> Callable[[Any], Any]:
    """Call `look` with the arguments of a function before the function, in traces of ours."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def looking(*args: Any, **kwargs: Any) -> Any:
            if _asked.get() is not None:
                look(*args, **kwargs)
            return original(*args, **kwargs)

        return looking

    return make


def guarding_whole(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(method)
    def guarding(self: Any) -> Any:
        value = method(self)
        if _asked.get() is not None:
            _guard_whole(self)
        return value

    return guarding


def empty(_: Any) -> dict[Any, Any]:
    """For a cache of Dynamo's that would hold bound methods of a trace without hooks."""
    return {}
