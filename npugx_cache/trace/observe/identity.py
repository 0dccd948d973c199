"""Notes which objects a trace took for one, and which it told apart, where torch has no guard.

Torch guards that two arguments are one object. It neither guards that an argument is the object
of a global, nor that two objects are different ones. Each of these reads was seen to give a wrong
result after a change (`tests/soundness/rows/identity.txt`):

- `is`, and what falls back on it: `==`, `in` and `index` of objects without an `__eq__`;
- objects that are keys or elements by identity;
- objects that the code writes to, beside others of their class that the code reads.

Importing this module loads the compiler.
"""

from __future__ import annotations

import enum
import functools
import inspect
import types
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import ConstDictKeySource
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

from npugx_cache.trace import tracing
from npugx_cache.trace.observe import observation
from npugx_cache.trace.observe.observation import Question
from npugx_cache.trace.stack_value import NONE, look_behind, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npugx_cache.trace.observe.observation import Recorder

_FIXED_BY_VALUE = (
    *(type(None), bool, type(...), type(NotImplemented), type, enum.Enum, types.ModuleType),
    *(torch.dtype, torch.layout, torch.memory_format),
)
"""A guard on the value of such an object says which object that is."""

_EQUAL_BY_VALUE = (int, float, complex, str, bytes, tuple, frozenset, range, torch.device)
"""Which of two equal ones it is matters to `is` alone."""

_BY_IDENTITY: Any = object.__hash__
_GUARDED_BY_CODE = (types.FunctionType, types.MethodType)


@observation.around
def guarding_duplicates(
    recorder: Recorder, original: Callable[..., Any], source: Any, other: Any
) -> Any:
    """Guard that two sources are one object, also where one is a local and the other a global."""
    del recorder
    guard = original(source, other)
    if guard is None and other is not None and source != other:
        return functools.partial(GuardBuilder.DUPLICATE_INPUT, source_b=other)
    return guard


def note_is(recorder: Recorder, left: Any, right: Any) -> None:
    """Before `is` compares two values."""
    _note_apart(recorder, left.realize(), right.realize(), _FIXED_BY_VALUE)


def note_comparisons(recorder: Recorder, value: Any, others: Iterable[Any]) -> None:
    """Before a value is compared with others by `==`, which asks for the identity of some."""
    one = value.realize()
    found = look_behind(one).value
    if found is not NONE and inspect.getattr_static(type(found), "__eq__") is object.__eq__:
        for other in others:
            _note_apart(recorder, one, other.realize(), (*_FIXED_BY_VALUE, *_EQUAL_BY_VALUE))


@observation.around
def noting_comparison(
    recorder: Recorder, original: Callable[..., Any], left: Any, right: Any
) -> Any:
    """Comparisons that ask first whether both are one object, and else call `__eq__`."""
    answer = original(left, right)
    _note_apart(recorder, left, right, (*_FIXED_BY_VALUE, *_EQUAL_BY_VALUE))
    return answer


@observation.around
def noting_search(
    recorder: Recorder,
    original: Callable[..., Any],
    items: Any,
    search: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """A search for a function or a method: Dynamo compares the objects, and guards their code."""
    items = list(items)  # both Dynamo and this function go through them
    answer = original(items, search, *args, **kwargs)
    # All else is found by its value, or its comparisons are noted.
    if search.is_python_constant() and search.python_type() in _GUARDED_BY_CODE:
        for each in items:
            if each.is_python_constant() and each.python_type() in _GUARDED_BY_CODE:
                _note_apart(recorder, search, each, ())
    return answer


def _note_apart(recorder: Recorder, left: Any, right: Any, clear: tuple[type, ...]) -> None:
    one, other = look_behind(left).value, look_behind(right).value
    # The guards on the types of two objects tell these apart; an object without a source is new.
    known = one is not NONE and type(one) is type(other) and not isinstance(one, clear)
    if known and left.source and right.source and left.source != right.source:
        recorder.note(Question.APART, (left.source, right.source))


class _Keys:
    """The sources of objects that were keys or elements by identity."""

    def __init__(self) -> None:
        self.sources: dict[type, dict[Any, None]] = {}


def note_key(recorder: Recorder, tracker: Any, variable: Any) -> None:
    """Tell all keys of one class apart: a dict or a set finds a key by its identity."""
    del tracker
    source = variable.source
    if not source:
        return
    is_waiting = hasattr(variable, "original_value") and not variable.is_realized()
    if isinstance(source, ConstDictKeySource):
        pass  # the keys of a dict have guards of their own
    elif is_waiting and tracing.is_skipped(variable.original_value()):
        # Once Dynamo has looked at such a function, the function has no hash.
        install_guard(source.make_guard(GuardBuilder.ID_MATCH))
    else:
        LazyVariableTracker.realize_all(variable)  # Dynamo takes the hash of some without a guard
        is_waiting = False
    value = variable.original_value() if is_waiting else look_behind(variable.realize()).value
    kind = type(value)
    if value is NONE or isinstance(value, _FIXED_BY_VALUE):
        return
    if kind.__hash__ is _BY_IDENTITY or kind in (types.FunctionType, types.MethodType):
        known = recorder.state(_Keys).sources.setdefault(kind, {})
        for other in known:
            if other != source:
                recorder.note(Question.APART, (other, source))
        known[source] = None


class Writes:
    """Whether a caller frame changes what was there before the call: `Recorder.state`.

    Dynamo writes none of it in a frame without side effects (`SideEffects.is_empty`), and then does
    not come by here.
    """

    def __init__(self) -> None:
        self.any = False


def note_written(recorder: Recorder, effects: Any, *_: Any) -> None:
    """Tell objects that the code writes to from the others of their class that the code met."""
    met: dict[type, list[Any]] = {}
    written: dict[type, None] = {}
    writes = recorder.state(Writes)
    writes.any |= bool(effects.tensor_hooks or effects.save_for_backward)
    for variable in effects.id_to_variable.values():
        if isinstance(variable.mutation_type, (AttributeMutationNew, ValueMutationNew)):
            writes.any |= hasattr(_class_of(variable), "__del__")
            continue
        writes.any |= bool(variable.mutation_type) and _changes(effects, variable)
        if not variable.source:
            continue
        kind = _class_of(variable)
        if kind is None or kind is types.CellType:
            continue
        met.setdefault(kind, []).append(variable.source)
        if effects.is_modified(variable):
            written[kind] = None
    for kind in written:
        if len(met[kind]) > 1:
            recorder.note(Question.APART, tuple(met[kind]))


def _changes(effects: Any, variable: Any) -> bool:
    """Whether the caller frame changes an object. It may write what stands there already."""
    plain = type(variable) is UserDefinedObjectVariable and hasattr(variable.value, "__dict__")
    if not plain or table_of(variable) is not variable:  # until torch 2.14
        return bool(effects.is_modified(variable))
    held = vars(variable.value)
    return any(
        not new.is_python_constant() or held.get(name, NONE) is not new.as_python_constant()
        for name, new in effects.store_attr_mutations.get(variable, {}).items()
    )


def _class_of(variable: Any) -> type | None:
    try:
        kind: type = variable.python_type()
    except NotImplementedError:  # a global that the code assigns to, and the like
        return None
    return kind
