"""What Dynamo reads of callables without a guard.

- attributes of a function that no place leads to: a method of an object that the trace made;
- attributes of a `functools.partial`, of which Dynamo says that there are none, and a class derived
  from it, which Dynamo takes for partial itself: refused;
- the globals of generated code, such as the forward of a `torch.fx.GraphModule`: they are a dict of
  no module, and are reached through the function;
- attributes of what wraps a function, such as `lru_cache`: Dynamo asks the function; refused.

Before torch 2.15 Dynamo gives the descriptor for a text that C code keeps, such as `__qualname__`.

Importing this module loads the compiler.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import TYPE_CHECKING, Any

from torch._dynamo.source import AttrSource, DictGetItemSource
from torch._dynamo.variables import VariableTracker
from torch._dynamo.variables.builder import VariableBuilder

from npugx_cache.portable import is_covered_class
from npugx_cache.portable.pinned import is_covered_module
from npugx_cache.trace import tracing
from npugx_cache.trace.observe import observation
from npugx_cache.trace.observe.observation import Question, place_of_the_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder


@observation.around
def reaching_globals(_: Recorder, original: Callable[..., Any], tx: Any, name: str) -> Any:
    """Where Dynamo finds a global of an inlined function: by the function, if no module has it."""
    source = getattr(tx.funcvar, "source", None)
    if "__name__" in tx.f_globals or source is None:
        return original(tx, name)
    globals_source = AttrSource(source, "__globals__")
    try:
        leads_there = tracing.value_at(tx, globals_source) is tx.f_globals
    except Exception:  # noqa: BLE001 - of an object that the trace made, or of user code
        leads_there = False
    if not leads_there:
        return original(tx, name)
    variable = VariableBuilder(tx, globals_source)(tx.f_globals)
    return tx.f_globals, variable, DictGetItemSource(globals_source, name)


@observation.around
def reading_text(
    _: Recorder, original: Callable[..., Any], tx: Any, function: Any, source: Any, name: str
) -> Any:
    """The text that a function has for an attribute, and not the descriptor that computes it."""
    member = inspect.getattr_static(type(function), name, None)
    if not isinstance(member, types.GetSetDescriptorType):
        return original(tx, function, source, name)
    value = getattr(function, name)
    if type(value) is not str:
        return original(tx, function, source, name)
    return VariableTracker.build(tx, value, source and AttrSource(source, name))


def note_attribute(recorder: Recorder, variable: Any, name: str) -> None:
    function = _function_of(variable)
    if variable.source or name in _OF_METHODS or type(function) is not types.FunctionType:
        return
    if not is_covered_module(str(function.__globals__.get("__name__"))):
        recorder.note(Question.FUNCTION_VALUE, function, name, place_of_the_trace())
        _refuse_told_by_code(recorder, variable, function, name)


def _function_of(variable: Any) -> object:
    try:
        return getattr(variable, "fn", getattr(variable, "value", None))
    except NotImplementedError:  # of a method whose function the trace itself made
        return None


def _refuse_told_by_code(recorder: Recorder, variable: Any, function: Any, name: str) -> None:
    """Since torch 2.14 Dynamo asks the code for a name that Python keeps in the function."""
    told = _TOLD_BY_CODE.get(name)
    if told is None or not hasattr(variable, "lookup_tp_getset_member"):
        return
    if getattr(variable, told)() != getattr(function, name):
        recorder.refuse(f"the {name} of {function.__qualname__} is traced as that of its code")


_TOLD_BY_CODE = {f"__{name}__": f"get_{name}" for name in ("name", "qualname", "doc", "module")}
_OF_METHODS = frozenset({"__self__", "__func__", "__get__", "__call__", "__class__"})
"""What a function has because of its type, and what a method has of its own."""


_SLOTS = frozenset({"func", "args", "keywords"})


def refuse_attribute(recorder: Recorder, variable: Any, tx: Any, name: str) -> None:
    del tx
    if variable.source and name not in _SLOTS:
        recorder.refuse(f"the attribute {name} of a functools.partial is not traced")


def refuse_wrappers(recorder: Recorder, variable: Any, name: str) -> None:
    if name != variable.attr_to_trace:
        recorder.refuse(f"the attribute {name} of what wraps a function is not traced")


def refuse_derived(recorder: Recorder, builds: Any, value: object) -> None:
    del builds
    cls = type(value)
    if isinstance(value, functools.partial) and not is_covered_class(cls):
        recorder.refuse(f"{cls.__qualname__} is traced as functools.partial itself")
