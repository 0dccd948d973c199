"""Notes which classes of user code a trace meets, and which names Dynamo looks up in the classes.

Dynamo installs no guard on a name that a class does not have. If somebody later adds `__bool__` to
the class, or overrides an inherited method, a stored graph would silently be wrong. `torch_guards`
does the same for modules and functions. Importing this module loads the compiler.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.source import AttrSource, CallFunctionNoArgsSource, GetItemSource
from torch._dynamo.variables import ListVariable, user_defined
from torch._dynamo.variables.base import ValueMutationNew, VariableTracker

from npugx_cache.portable import is_covered_class
from npugx_cache.trace.observe.observation import Question, place_of_the_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from npugx_cache.trace.observe.observation import Recorder


def _class_of(value: object) -> type:
    return value if isinstance(value, type) else type(value)


def _of_users(cls: type) -> Iterator[type]:
    return (base for base in cls.__mro__ if not is_covered_class(base))


class _Known(dict[int, tuple[type, bool]]):
    """By id: the classes that a trace has met, and whether each is of user code."""


def _is_of_users(recorder: Recorder, cls: type) -> bool:
    known = recorder.state(_Known)
    if (answer := known.get(id(cls))) is None:
        is_own = any(True for _ in _of_users(cls))  # a class may be false: its metaclass says so
        answer = known[id(cls)] = cls, is_own
    return answer[1]


def note_class(recorder: Recorder, value: object, source: Any) -> None:
    """Without a source, nothing that the methods of the object captured has a guard."""
    cls = _class_of(value)
    for each in (cls, type(cls)):
        if _is_of_users(recorder, each):
            recorder.note(Question.SPECIAL_NAMES, each)
            if source is None:
                recorder.note(Question.METHODS, each, None, place_of_the_trace())


def note_name(recorder: Recorder, variable: Any, name: object) -> None:
    cls = _class_of(variable.value)
    if name == "__subclasses__":
        _refuse_subclasses(recorder, variable)
    if isinstance(name, str) and _is_of_users(recorder, cls):
        recorder.note(Question.NAME, cls, name)
        if isinstance(variable.value, type):
            note_name_in(recorder, type(cls), name)  # a class has methods of its metaclass
        if isinstance(variable.value, type) and not variable.source:
            kind: type = type(cls)
            _note_value(recorder, (*cls.__mro__, *kind.__mro__), name)


def note_name_in(recorder: Recorder, cls: type, name: str) -> None:
    """Which of its bases gives a class a name."""
    if _is_of_users(recorder, cls):
        recorder.note(Question.NAME, cls, name)


def _refuse_subclasses(recorder: Recorder, variable: Any) -> None:
    """Dynamo guards the subclasses of a class that it found, and asks no method of the user's."""
    cls = _class_of(variable.value)
    kind: Any = type(cls)
    bases = (each for each in (*cls.__mro__, *kind.__mro__) if each is not type)
    own = any("__subclasses__" in vars(base) for base in bases)
    if own or not variable.source:
        recorder.refuse(f"the subclasses of {cls.__qualname__} have no guard")


class _Asked(set[type]):
    """The classes whose subclasses a trace has asked for."""


def call_subclasses(recorder: Recorder, tx: Any, variable: Any, run: Callable[[], Any]) -> Any:
    """Give each question for the subclasses of a class a list of its own, as Python does.

    Dynamo gives the list of the first question again, which the code may have changed.
    """
    answer, variable = run(), variable.realize()
    if not variable.source or not isinstance(getattr(variable, "value", None), type):
        return answer
    given = tuple(variable.value.__subclasses__())
    recorder.note(Question.SUBCLASSES, variable.value, given, place_of_the_trace())
    asked = recorder.state(_Asked)
    if variable.value not in asked:
        asked.add(variable.value)
        return answer
    answer.realize()  # which guards how many there are, also if no code has used the first list
    source = CallFunctionNoArgsSource(AttrSource(variable.source, "__subclasses__"))
    built = [
        VariableTracker.build(tx, cls, GetItemSource(source, i)) for i, cls in enumerate(given)
    ]
    return ListVariable(built, mutation_type=ValueMutationNew())


def note_inherited(recorder: Recorder, variable: Any, tx: Any, name: str, *_: Any) -> None:
    """`super()` looks in the classes that follow a class: each of them may get the name.

    Of an object that the trace itself made, Dynamo reads a value there without a guard.
    """
    del tx
    if variable.objvar is None:
        return
    cls = _class_of(getattr(variable.objvar, "value", None))
    for base in _of_users(cls):
        recorder.note(Question.NAME, base, name)
    start, order = variable.typevar.as_python_constant(), cls.__mro__
    following = order[order.index(start) + 1 :] if start in order else order
    found = next((vars(each)[name] for each in following if name in vars(each)), True)
    if not hasattr(type(found), "__get__") and not found:
        recorder.refuse(f"super().{name} is traced as if no class had it, because it is false")
    if not variable.objvar.source:
        _note_value(recorder, following, name)


def _note_value(recorder: Recorder, classes: Iterable[type], name: str) -> None:
    """Note a value that Dynamo reads from a class without a guard, if it can be compared.

    Functions and properties are conditions of their own. What can be edited in place, such as a
    list, is refused.
    """
    found = next((each for each in classes if name in vars(each)), None)
    if found is None or is_covered_class(found):
        return
    value = vars(found)[name]
    if hasattr(type(value), "__get__"):
        return
    if _is_fixed(value) or isinstance(value, type):
        recorder.note(Question.VALUE, found, name, place_of_the_trace())
    else:
        recorder.refuse(f"the value of {found.__qualname__}.{name} is read without a guard")


def _is_fixed(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_fixed, value))
    return type(value) in _FIXED


_FIXED = frozenset(
    {int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device},
)


def note_stored(
    recorder: Recorder, effects: Any, item: Any, name: object, *_: Any, **__: Any
) -> None:
    """Dynamo reads an attribute that the trace has set from there, whatever the class has."""
    del effects
    if isinstance(item, user_defined.UserDefinedVariable):
        note_name(recorder, item, name)


def refuse_to_make(recorder: Recorder, cls: type) -> None:
    """Refuse objects that Dynamo makes in another way than Python does, without a word."""
    if any("__call__" in vars(each) for each in _of_users(type(cls))):
        recorder.refuse(f"the __call__ of the metaclass of {cls.__qualname__} is not traced")
    if issubclass(cls, BaseException) and any(map(_is_own_exception, _of_users(cls))):
        recorder.refuse(f"{cls.__qualname__} is traced as an exception without methods of its own")


def _is_own_exception(cls: type) -> bool:
    """Whether the class gives its exceptions a text or arguments, which Dynamo does not know."""
    made = (vars(cls).get(name) for name in ("__init__", "__new__"))
    writes = any("args" in getattr(each, "__code__", _NO_CODE).co_names for each in made)
    return writes or not {"__str__", "__repr__", "args"}.isdisjoint(vars(cls))


_NO_CODE = (lambda: None).__code__


def note_frozen(recorder: Recorder, variable: Any, *_: Any) -> None:
    """Dynamo compares keys and elements by all fields, whatever the class says."""
    cls = variable.python_type()
    made = all(map(_is_generated, (cls.__eq__, cls.__hash__)))
    if not made or not all(field.compare for field in dataclasses.fields(cls)):
        recorder.refuse(f"{cls.__qualname__} in a dict or a set is compared by all of its fields")


def _is_generated(method: Any) -> bool:
    return bool(getattr(method, "__code__", _NO_CODE).co_filename == "<string>")
