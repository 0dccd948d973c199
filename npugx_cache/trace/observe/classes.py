"""Names that Dynamo looks up without a guard, found or not.

In classes of user code no guard tells that a class has got a name since: a `__bool__`, an override
of an inherited method. So each class that a trace meets is noted, and each name that is looked up
in it; `callables` does the same for modules and functions. Importing this loads the compiler.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from torch._dynamo.variables import user_defined

from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.trace.observe.observation import Question

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npugx_cache.trace.observe.observation import Recorder


def uncached(cached: Any) -> Any:
    """Dynamo keeps which slots a type had at its first trace, such as that of `__bool__`."""
    return cached.__wrapped__


def _class_of(value: object) -> type:
    return value if isinstance(value, type) else type(value)


def _of_users(cls: type) -> Iterator[type]:
    return (base for base in cls.__mro__ if not is_covered_module(base.__module__))


def _is_of_users(cls: type) -> bool:
    return any(True for _ in _of_users(cls))  # a class may be false: its metaclass says so


def note_class(recorder: Recorder, variable: Any, value: object, *_: Any, **__: Any) -> None:
    del variable
    cls = _class_of(value)
    for each in filter(_is_of_users, (cls, type(cls))):
        recorder.note(Question.SPECIAL_NAMES, each)


def note_name(recorder: Recorder, variable: Any, tx: Any, name: object, *_: Any) -> None:
    del tx
    cls = _class_of(variable.value)
    if isinstance(name, str) and _is_of_users(cls):
        recorder.note(Question.NAME, cls, name)
        if name == "__reduce_ex__":
            _refuse_to_copy(recorder, cls)


def note_member(recorder: Recorder, variable: Any, name: str) -> None:
    """A name that Dynamo looks for in its own tables first."""
    note_name(recorder, variable, None, name)


def _refuse_to_copy(recorder: Recorder, cls: type) -> None:
    """What `copy.copy` takes from a class, but Dynamo's own version of it does not."""
    for name in ("__reduce__", "__getstate__", "__getnewargs__", "__getnewargs_ex__"):
        if any(name in vars(base) for base in _of_users(cls)):
            recorder.refuse(f"{cls.__qualname__} is copied without its {name}")


def note_inherited(recorder: Recorder, variable: Any, tx: Any, name: str, *_: Any) -> None:
    """`super()` looks on behind a class: each that follows may get the name."""
    del tx
    cls = _class_of(getattr(variable.objvar, "value", None))
    for base in _of_users(cls):
        recorder.note(Question.NAME, base, name)


def note_stored(
    recorder: Recorder, effects: Any, item: Any, name: object, *_: Any, **__: Any
) -> None:
    """An attribute that the trace itself set is read from there, whatever its class has."""
    if isinstance(item, user_defined.UserDefinedVariable):
        note_name(recorder, item, effects, name)


def refuse_to_make(recorder: Recorder, variable: Any, *_: Any, **__: Any) -> None:
    """Of what Dynamo makes otherwise than Python, without a word."""
    cls = _class_of(variable.value)
    if any("__call__" in vars(each) for each in _of_users(type(cls))):
        recorder.refuse(f"the __call__ of the metaclass of {cls.__qualname__} is not traced")
    if issubclass(cls, BaseException) and any(map(_is_own_exception, _of_users(cls))):
        recorder.refuse(f"{cls.__qualname__} is traced as an exception without methods of its own")


def _is_own_exception(cls: type) -> bool:
    """Whether an exception has a text or arguments that Dynamo does not take from it."""
    made = (vars(cls).get(name) for name in ("__init__", "__new__"))
    writes = any("args" in getattr(each, "__code__", _NO_CODE).co_names for each in made)
    return writes or not {"__str__", "__repr__", "args"}.isdisjoint(vars(cls))


_NO_CODE = (lambda: None).__code__


def note_frozen(recorder: Recorder, variable: Any, *_: Any) -> None:
    """Of keys and elements: Dynamo compares all fields, whatever the class says."""
    cls = variable.python_type()
    made = all(map(_is_generated, (cls.__eq__, cls.__hash__)))
    if not made or not all(field.compare for field in dataclasses.fields(cls)):
        recorder.refuse(f"{cls.__qualname__} in a dict or a set is compared by all of its fields")


def _is_generated(method: Any) -> bool:
    return bool(getattr(method, "__code__", _NO_CODE).co_filename == "<string>")
