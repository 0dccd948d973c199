"""Refuses what the caller frame that Dynamo writes would lose, or make as another type.

A frame replays what the traced code did to objects, and makes the results. Seen to go wrong:

- changes to the elements of a set whose class is derived from `set`: nothing writes them;
- an iterator over a list, and a generator: the caller gets the iterator of a tuple, and the body of
  the generator has run by then;
- a context of torch's: the caller gets one of another class;
- draws from a `random.Random` that existed before: its state has no guard.

What is listed here is known to be written, or made; everything else is refused.
Importing this module loads the compiler.
"""

from __future__ import annotations

import inspect
import itertools
import random
import threading
import types
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable
from torch._guards import Source

from npugx_cache.trace.observe import numpy_arrays, torch_guards
from npugx_cache.trace.observe.observation import Question
from npugx_cache.trace.rules import iterators, written_names
from npugx_cache.trace.stack_value import is_context, look_behind, table_of

if TYPE_CHECKING:
    from npugx_cache.trace.observe.observation import Recorder

_MADE = (
    *(object, list, dict, tuple, frozenset, BaseException),
    *(bool, int, float, complex, str, bytes, torch.Tensor),
)
"""Builtin classes: a frame makes objects of classes derived from these with all that they hold."""

_WRITTEN = (list, dict)
"""Builtin classes: a frame writes what objects of classes derived from these hold."""

_ITERATORS = (*(zip, map, filter, type(iter(range(0))), itertools.count, itertools.repeat),)
"""Iterators that a frame makes as what they are."""


def refuse_lost(recorder: Recorder, effects: Any, *_: Any) -> None:
    """Refuse objects that a frame would leave as they were. Called when a trace has ended."""
    written_names.refuse_changed_dicts(recorder, effects)
    for variable in effects.id_to_variable.values():
        if not isinstance(variable, UserDefinedObjectVariable) or not effects.is_modified(variable):
            continue
        kind = variable.python_type()
        if isinstance(variable.mutation_type, (AttributeMutationNew, ValueMutationNew)):
            if builtin_base(kind) not in _MADE:
                recorder.refuse(f"an object of {_describe_class(kind)} is made inside")
        elif _holds_more(effects, variable) and builtin_base(kind) not in _WRITTEN:
            recorder.refuse(f"what an object of {_describe_class(kind)} holds is changed inside")
        if issubclass(kind, threading.local):
            _note_thread_local(recorder, kind)


def _holds_more(effects: Any, variable: Any) -> bool:
    """Whether the trace changed what an object holds besides its attributes."""
    inner = table_of(variable)
    if inner is not variable:
        return bool(effects.is_modified(inner))
    return bool(getattr(variable.mutation_type, "is_modified", False))


def builtin_base(kind: type) -> type:
    """The class written in C that objects of a class are made by."""
    return next(
        base
        for base in kind.__mro__
        if isinstance(vars(base).get("__new__"), types.BuiltinFunctionType)
    )


def _describe_class(kind: type) -> str:
    base = builtin_base(kind)
    return f"{kind.__qualname__}, a class derived from {base.__module__}.{base.__qualname__},"


def _note_thread_local(recorder: Recorder, kind: Any) -> None:
    """Dynamo takes attributes of thread-locals for plain ones, and its own frame may lose them."""
    for name in ("__setattr__", "__delattr__", "__getattribute__"):
        if getattr(kind, name) is not getattr(threading.local, name):
            recorder.refuse(f"the {name} of {kind.__qualname__}, a thread-local, is not traced")
    recorder.note(Question.THREAD_LOCAL, kind)


def guard_deleted(
    recorder: Recorder, effects: Any, item: Any, name: str, value: Any, *_: Any, **__: Any
) -> None:
    """Guard that an attribute is there which the code deletes: without it eager raises.

    An attribute that the code itself has set before is not there. Where the class has one of that
    name, Dynamo still deletes it from a module when the graph has run, which raises.
    """
    del effects
    if type(value).__name__ != "DeletedVariable" or not isinstance(item, UserDefinedObjectVariable):
        return
    torch_guards.guard_hasattr(item, None, name)
    kind = type(item.value)
    if kind.__delattr__ is object.__delattr__ or name in vars(item.value):
        return
    of_class = inspect.getattr_static(kind, name, None)
    if of_class is not None and not hasattr(type(of_class), "__delete__"):
        recorder.refuse(f"the attribute {name} of a {kind.__qualname__} is set and deleted again")


def refuse_other_object(recorder: Recorder, codegen: Any, value: Any, *_: Any, **__: Any) -> None:
    """Refuse an iterator that a frame would make as another one. Called for each value it makes.

    So it is with a context of torch's: in the place of `no_grad()` it makes a `set_grad_enabled()`.
    """
    del codegen
    if value is None or isinstance(value, Source) or (value.source and not _is_run(value)):
        return
    found = look_behind(value)
    if is_context(found) and not found.is_computed and not _is_of_user(found.variable):
        recorder.refuse("a context of torch's that is made inside leaves the function")
        return
    try:
        kind: Any = value.python_type()
    except NotImplementedError:  # Dynamo refuses those that it can't make
        return
    if (what := numpy_arrays.obstacle_of_result(found.variable)) is not None:
        recorder.refuse(what)
    if iterators.walks_backwards(recorder, found.variable):
        recorder.refuse("a reversed() that is made inside leaves the function")
    is_kept = kind in _ITERATORS and not iterators.walks_a_copy(found.variable)
    if hasattr(kind, "__next__") and not is_kept:
        recorder.refuse(f"a {kind.__qualname__} that is made inside leaves the function")


def _is_of_user(variable: Any) -> bool:
    return isinstance(variable, UserDefinedObjectVariable)


def _is_run(value: Any) -> bool:
    """Whether the value is a generator: Dynamo runs it to its end, also one that it was given."""
    return value.is_realized() and value.python_type() is types.GeneratorType


def refuse_random(recorder: Recorder, builds: Any, value: object) -> None:
    """Refuse a generator of random numbers that existed before: its state has no guard."""
    del builds
    if isinstance(value, random.Random):
        recorder.refuse("the state of a random.Random has no guard")
