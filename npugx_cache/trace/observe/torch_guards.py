"""Hooks that install one of torch's own guards, where Dynamo reads a value and forgets the guard.

A hook does this, in the place of an observation, where torch has a guard that says what is needed.
The guard must be there while the trace still runs: Dynamo looks at the guards of a dict later, a
graph that only this process may run runs under torch's guards alone (`trace.process_local`), and a
refusal is stored with the guards that the trace had met. Only values that the trace did not make
have a source, and need a guard. Importing this module loads the compiler.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.variables import dicts

from npugx_cache.conditions.cpp_paths import CHILDREN, gives_children
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.trace.observe import observation
from npugx_cache.trace.observe.observation import Question

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder
    from npugx_cache.trace.stack_value import StackValue


# --- the keys of dicts


def guard_keys(variable: Any, *_: Any) -> None:
    """All keys of a dict, in their order: it is used as a whole, as in `[*d]` and `str(d)`."""
    if isinstance(variable, dicts.ConstDictVariable) and variable.source:
        variable.install_dict_keys_match_guard()


@observation.around
def guarding_whole(_: Recorder, method: Callable[[Any], Any], variable: Any) -> Any:
    value = method(variable)
    guard_keys(variable)
    return value


def guard_absent_key(variable: Any, tx: Any, key: Any) -> None:
    """That a key is not there: the code may catch the KeyError."""
    if key not in variable:
        variable.install_dict_contains_guard(tx, [key])


# --- the `__dict__` of an object, which Dynamo guards only by what is read from it


def guard_object_keys(variable: Any) -> None:
    if variable.source:
        install_guard(variable.source.make_guard(GuardBuilder.DICT_KEYS_MATCH))


def guard_object_key(variable: Any, tx: Any, args: list[Any]) -> None:
    """By what is there before the call: attributes that the traced code sets don't count."""
    if not variable.source:
        return
    del tx
    key = args[0]  # of `get` and `pop`, the default comes next
    if not key.is_python_constant():
        guard_object_keys(variable)
        return
    name, kinds = key.as_python_constant(), type(variable)
    kind = kinds.CONTAINS_GUARD if name in variable.items.item_dict else kinds.NOT_CONTAINS_GUARD
    install_guard(variable.source.make_guard(functools.partial(kind, key=name)))


# --- attributes of modules, functions and objects


def lead_to_module(recorder: Recorder, variable: Any, tx: Any, name: str) -> None:
    """Give a module a source, and so what is read from it, where no place leads to the module.

    The default of a method is such a module, if the trace itself made the object of the method.
    """
    module = variable.value.__name__
    if variable.source or is_covered_module(module):
        return
    if sys.modules.get(module) is variable.value:
        variable.source = tx.import_source(module)
    else:
        recorder.refuse(f"the attribute {name} of the module {module} has no guard")


def guard_hasattr(variable: Any, tx: Any, name: str) -> None:
    del tx
    if not variable.source:
        return
    if not _ASKS_BY_NAME and variable.value is None:
        # Torch can't tell None from no object at all here, and would read the missing attribute.
        install_guard(variable.source.make_guard(GuardBuilder.CONSTANT_MATCH))
    else:
        install_guard(_having(variable.source, name))


_ASKS_BY_NAME = "attr" in inspect.signature(GuardBuilder.HASATTR).parameters
"""Whether a guard on an attribute is one on its owner. Before torch 2.12 it has a source."""


def _having(source: Any, name: str) -> Any:
    if _ASKS_BY_NAME:
        return source.make_guard(functools.partial(GuardBuilder.HASATTR, attr=name))
    return AttrSource(source, name).make_guard(GuardBuilder.HASATTR)


def existence(source: Any) -> Any:
    """A guard that something is at a place, whatever it is: each object has a class."""
    return _having(source, "__class__")


def guard_answer(recorder: Recorder, found: StackValue, tx: Any, name: str) -> None:
    """Guard that nothing but `__getattr__` answers, if `__getattr__` did.

    Python asks a `__getattr__` only while nothing else has the name: an attribute that is set later
    takes the place of the answer.
    """
    value = found.value
    kind = type(value)
    if getattr(kind, "__getattr__", None) is None:
        return
    if tx.output.side_effects.has_pending_mutation_of_attr(found.variable, name):
        return
    if any(name in vars(base) for base in kind.__mro__):
        return
    if isinstance(value, torch.nn.Module):
        _note_child(recorder, found, name)
    if gives_children(kind.__getattr__):
        return
    if isinstance(value, type):
        if not any(name in vars(base) for base in value.__mro__):
            recorder.note(Question.NAME, value, name)
    elif name not in getattr(value, "__dict__", (name,)):
        guard_absence(found.source, name)


def guard_absence(source: Any, name: str) -> None:
    """That the `__dict__` of the object at a source has no such name."""
    absent = functools.partial(GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr=name)
    install_guard(source.make_guard(absent))


def _note_child(recorder: Recorder, found: StackValue, name: str) -> None:
    """Note that a module gives a parameter, buffer or submodule: nothing else has that name.

    Dynamo reads such a child from its dict and, to save time, leaves that out.
    """
    module, kind = found.value, cast("Any", type(found.value))
    own = vars(module)
    if name in own or kind.__getattribute__ is not object.__getattribute__:
        return
    holding = [table for table in CHILDREN if name in (own.get(table) or ())]
    if holding == ["_buffers", "_modules"]:
        recorder.refuse(f"a buffer and a submodule named {name!r}, of which torch takes the latter")
    elif holding:
        recorder.note(Question.CHILD, found.source, name)
        if not gives_children(kind.__getattr__):
            recorder.note(Question.NAME, kind, "__getattr__")
