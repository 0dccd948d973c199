"""Facts about names: in which class, function or module an attribute is found, and that it is not.

Dynamo installs no guard on a name that a class does not have, nor on much of what it reads from
functions and modules. If somebody later adds `__bool__` to a class, or overrides an inherited
method, a stored graph would silently be wrong. Importing this module loads the compiler.
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.portable import is_covered_class
from npugx_cache.portable.pinned import is_compiler
from npugx_cache.private.runtime import is_wrapper
from npugx_cache.trace import tracing
from npugx_cache.trace.observe import callables, classes, torch_guards
from npugx_cache.trace.observe.observation import Question
from npugx_cache.trace.rules import attributes
from npugx_cache.trace.stack_value import (
    CONSTANTS,
    NONE,
    StackValue,
    is_tensor,
    look_behind,
    type_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npugx_cache.trace.observe.observation import Recorder

ASKING = (getattr, hasattr, setattr, delattr)
"""Builtins that look an attribute up by a name."""


def note_name(recorder: Recorder, tx: Any, variable: Any, name: str) -> None:
    """Before the attribute of a value is read, set, deleted or asked for."""
    found = look_behind(variable)
    if _is_waiting_constant(found):
        return
    variable = variable.realize()  # as Dynamo does before it reads
    if found.is_waiting:
        found = look_behind(variable)
    if (reason := attributes.obstacle_of_read(found, name)) is not None:
        recorder.refuse(reason)
    value, fields = found.value, vars(variable)
    if "typevar" in fields:
        classes.note_inherited(recorder, variable, tx, name)
    elif {"func", "keywords"} <= fields.keys():
        callables.refuse_attribute(recorder, variable, tx, name)
    elif "attr_to_trace" in fields:
        callables.refuse_wrappers(recorder, variable, name)
    elif not isinstance(value, type) and is_tensor(found):
        _note_name_of_tensor(recorder, tx, found, name)
    elif isinstance(value, types.ModuleType):
        torch_guards.lead_to_module(recorder, variable, tx, name)
    elif isinstance(value, types.FunctionType):
        callables.note_attribute(recorder, variable, name)
    else:
        _note_name_of_object(recorder, found, name)


def _note_name_of_object(recorder: Recorder, found: StackValue, name: str) -> None:
    if found.value is NONE:
        if (kind := type_of(found)) is not None:  # such as a named tuple before torch 2.12
            classes.note_name_in(recorder, kind, name)
    elif not isinstance(found.value, functools.partial):
        classes.note_name(recorder, found, name)


def _note_name_of_tensor(recorder: Recorder, tx: Any, found: StackValue, name: str) -> None:
    """Dynamo takes a method from the class, also where an attribute of the tensor hides it."""
    if name == "_base":
        recorder.refuse("whether a tensor is a view of another has no guard")
    kind: Any = type_of(found) or torch.Tensor
    classes.note_name_in(recorder, kind, name)
    holder = next((each for each in kind.__mro__ if name in vars(each)), None)
    if found.source is None or holder is None:
        return
    if is_covered_class(holder) and not inspect.isroutine(getattr(torch.Tensor, name, None)):
        return
    try:
        own = vars(tracing.value_at(tx, found.source))
    except Exception:  # noqa: BLE001 - code of the user's raises what it likes
        recorder.refuse(f"nobody can tell whether an attribute of a tensor hides its method {name}")
        return
    if name in own:
        recorder.refuse(f"the method {name} of a tensor is hidden by an attribute")
    else:
        torch_guards.guard_absence(found.source, name)


def note_super(recorder: Recorder, tx: Any, operands: list[Any], name: str) -> None:
    """Before `super()` is made of a class and an object, and looks a name up, in one step."""
    start, given = (each.realize() for each in operands)
    classes.note_inherited(recorder, types.SimpleNamespace(typevar=start, objvar=given), tx, name)


def _is_waiting_constant(found: StackValue) -> bool:
    """Whether to look at a value would guard it; the attributes of constants are Python's own."""
    return found.is_waiting and type(found.value) in CONSTANTS


def note_absence(tx: Any, variable: Any, name: str) -> None:
    """That an attribute is not there: the code may catch the AttributeError, or has a default."""
    found = look_behind(variable)
    if found.source is None or found.value is NONE:
        return
    is_there = inspect.getattr_static(found.value, name, NONE) is not NONE
    if not is_there and not hasattr(type(found.value), "__getattr__"):
        torch_guards.guard_hasattr(found, tx, name)


def note_question(tx: Any, variable: Any, name: str) -> None:
    """Whether a module or a function has an attribute: Dynamo guards that of objects alone."""
    found = look_behind(variable)
    if isinstance(found.value, (types.ModuleType, types.FunctionType)):
        torch_guards.guard_hasattr(found, tx, name)


def note_answer(recorder: Recorder, tx: Any, variable: Any, name: str) -> None:
    """After an attribute is read: a `__getattr__` is asked only while nothing else has the name."""
    found = look_behind(variable)
    if found.source is not None and found.value is not NONE:
        torch_guards.guard_answer(recorder, found, tx, name)


def modules_imported(tx: Any, found: StackValue, name: str) -> Iterator[StackValue]:
    """The modules that an import has found, each with a source of its own.

    `import package.module` gives the package, and raises where there is no such module.
    """
    yield found
    if isinstance(found.value, types.ModuleType) and found.value.__name__ != name:
        module = sys.modules.get(name)
        if module is not None and name.startswith(f"{found.value.__name__}."):
            yield found._replace(value=module, source=tx.import_source(name))


def note_import(recorder: Recorder, modules: Iterable[StackValue]) -> None:
    """The modules that an import has found: a process that restores the graph may lack them.

    `from package import module` finds a module by its name in the package.
    """
    for each in modules:
        if isinstance(each.value, types.ModuleType):
            name = each.value.__name__
            if sys.modules.get(name) is each.value and not is_compiler(name):
                recorder.note(Question.IMPORT, None, name)


def note_class(recorder: Recorder, found: StackValue) -> None:
    """The special methods of a value's class, which Python looks up by itself."""
    value = found.value
    if value is NONE or type(value) in CONSTANTS or isinstance(value, _WITHOUT_CLASS):
        return
    classes.note_class(recorder, value, found.source)


def note_class_of_tensor(recorder: Recorder, value: object, source: Any) -> None:
    """Those of the class of a tensor, such as `__torch_function__`, which torch looks up."""
    if isinstance(value, torch.Tensor) and not is_wrapper(value):
        classes.note_class(recorder, value, source)


_WITHOUT_CLASS = (torch.Tensor, types.ModuleType, types.FunctionType, enum.Enum)
"""Values of whose special methods a guard, or another fact, says all."""
