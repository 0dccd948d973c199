"""Refuses or corrects answers that Dynamo gives in the place of builtins, and Python would not.

An exception that Dynamo raises for a builtin has another text and other arguments than Python's,
and the text of a KeyError or an OSError is not that of its arguments: code that reads one of these
is refused. Dynamo answers `n in range(...)` with a number; a rule makes that a bool. Dynamo adds up
the elements of a list without asking the class of the list, and takes a number of NumPy's for an
array; that is refused too. `first, *rest = items` makes a list. Importing this module loads the
compiler.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch._dynamo import exc, variables
from torch._dynamo.variables import VariableTracker, user_defined
from torch._dynamo.variables.base import ValueMutationNew

from npugx_cache.conditions import process
from npugx_cache.trace.observe import observation
from npugx_cache.trace.observe.enumerations import refuse_own_operators
from npugx_cache.trace.observe.numpy_numbers import REFUSED
from npugx_cache.trace.stack_value import constant_of, look_behind

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder


def as_list(variable: Any) -> Any:
    """What `*rest` takes: before torch 2.13 Dynamo makes a tuple, and Python a list."""
    if type(variable) is not variables.TupleVariable:
        return variable
    return variables.ListVariable(list(variable.items), mutation_type=ValueMutationNew())


class _Raised(list[Any]):
    """The exceptions that Dynamo raised in the place of builtins."""


@observation.around
def noting_what_is_raised(
    recorder: Recorder, raising: Callable[..., None], exc_type: Any, tx: Any, **arguments: Any
) -> None:
    try:
        raising(exc_type, tx, **arguments)
    except exc.ObservedException:
        recorder.state(_Raised).append(_raised_exception(tx.exn_vt_stack))
        raise


def raise_as_python(recorder: Recorder, tx: Any, error: Exception) -> NoReturn:
    """Raise in traced code what Python raised here, with its text, which code may read."""
    try:
        exc.raise_observed_exception(type(error), tx, args=[str(error)])
    except exc.ObservedException:
        recorder.state(_Raised).remove(_raised_exception(tx.exn_vt_stack))
        raise


def _raised_exception(exceptions: Any) -> Any:
    if hasattr(exceptions, "get_raised_exception"):  # since torch 2.14
        return exceptions.get_raised_exception()
    return exceptions.get_current_exception()


def _is_of_a_builtin(recorder: Recorder, variable: Any) -> bool:
    return any(each is variable for each in recorder.state(_Raised))


def note_arguments(recorder: Recorder, variable: Any, *given: Any) -> None:
    name = given[-1]
    if name not in _LINKS and _is_of_a_builtin(recorder, variable):
        recorder.refuse("what an exception of a builtin says is not traced")


_LINKS = frozenset(
    {"__class__", "__context__", "__cause__", "__suppress_context__", "__traceback__"}
)


_EXCEPTION: Any = vars(variables)["ExceptionVariable"]  # of a module that torch moved it from
_TEXT_OF_ARGUMENTS: Any = BaseException.__str__


def note_own_text(recorder: Recorder, value: Any, tx: Any) -> None:
    del tx
    note_text(recorder, value)


def note_text(recorder: Recorder, value: Any) -> None:
    value = value.realize()
    kinds = (_EXCEPTION, user_defined.UserDefinedExceptionObjectVariable)
    if not isinstance(value, kinds):
        return
    kind: Any = value.python_type()
    if kind.__str__ is not _TEXT_OF_ARGUMENTS:
        recorder.refuse(f"the text of a {kind.__name__} is not traced")
    elif _is_of_a_builtin(recorder, value):
        recorder.refuse("the text of an exception of a builtin is not traced")


def as_bool(tx: Any, answer: Any) -> Any:
    """The answer of a search: Dynamo gives a number where it searches a range."""
    if type(value := constant_of(look_behind(answer))) is int:
        return VariableTracker.build(tx, bool(value))
    return answer


def refuse_range(recorder: Recorder, args: list[Any]) -> None:
    """Refuse range() of what Python takes for no whole number: Dynamo makes an int of it."""
    constants = [each.as_python_constant() for each in args if each.is_python_constant()]
    for value in constants:
        if not isinstance(value, int):
            recorder.refuse(f"range() of a {type(value).__name__} raises in Python")
        refuse_own_operators(recorder, type(value))


def refuse_sum(
    recorder: Recorder, function: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]
) -> None:
    """Refuse sum() of an object whose class walks otherwise than the list or tuple it is."""
    del tx, kwargs
    if function.fn is sum and args:
        _refuse_own_walk(recorder, args[0].realize(), "sum")


def call_format(
    recorder: Recorder, tx: Any, args: list[Any], kwargs: dict[str, Any], run: Callable[[], Any]
) -> Any:
    """Answer format(value, specification), which Dynamo takes for str.format(value, ...).

    Dynamo gives the text of the value then, without the specification.
    """
    if kwargs or len(args) not in (1, 2):
        return run()
    specification: Any = ""
    if len(args) == 2:
        specification = args[1].as_python_constant() if args[1].is_python_constant() else None
    if type(specification) is not str or set(specification) & set("{}"):
        recorder.refuse("this specification of format() is not traced")
        return run()
    text = VariableTracker.build(tx, f"{{:{specification}}}")
    return variables.BuiltinVariable(str.format).call_function(tx, [text, args[0]], {})


def empty_deque(variable: Any) -> None:
    """Empty a deque without room, of which Dynamo keeps all items: `items[-0:]` are all."""
    fields = vars(look_behind(variable).variable)
    limit, items = fields.get("maxlen"), fields.get("items")
    if limit is not None and items and constant_of(look_behind(limit)) == 0:
        items.clear()


def refuse_keys(recorder: Recorder, tx: Any, cls: type, *args: Any, **kwargs: Any) -> None:
    """Refuse dict.fromkeys() of an object whose class walks otherwise than the dict it is."""
    del tx, cls, kwargs
    for each in args[:1]:
        _refuse_own_walk(recorder, each.realize(), "fromkeys")


def _refuse_own_walk(recorder: Recorder, walked: Any, caller: str) -> None:
    if not isinstance(walked, user_defined.UserDefinedObjectVariable):
        return
    cls: Any = walked.python_type()
    own = getattr(cls, "__iter__", None)
    if issubclass(cls, (list, tuple, dict)) and own not in _WALKS:
        recorder.refuse(f"the __iter__ of {cls.__qualname__} is not asked by {caller}()")


_WALKS: Any = (list.__iter__, tuple.__iter__, dict.__iter__, OrderedDict.__iter__)


def refuse_late_text(recorder: Recorder, variable: Any, *_: Any) -> None:
    """Refuse a text with an object in it: Dynamo makes the text when the graph has run."""
    del variable
    recorder.refuse("the text of an object is made too late")


def refuse_number(recorder: Recorder, variable: Any, proxy: Any, *, ndim: int, **_: Any) -> None:
    """Refuse arrays without dimensions, which are what Dynamo makes of numbers of NumPy's.

    Python takes `np.float64(2)` for a float, also next to a tensor: `integers * np.float64(2)` is
    float32, but float64 where an array stands in the place of the number.
    """
    del proxy
    if ndim == 0 and type(variable).__name__ == "NumpyNdarrayVariable":
        recorder.refuse(REFUSED.format("traced as an array"))


def call_shape_as_tensor(
    recorder: Recorder, tx: Any, args: list[Any], kwargs: dict[str, Any], run: Callable[[], Any]
) -> Any:
    """What `torch._shape_as_tensor` gives: a tensor of 64-bit integers on the CPU."""
    if kwargs or len(args) != 1:
        recorder.refuse("torch._shape_as_tensor is given its tensor by name")
        return run()
    wanted = {"dtype": torch.int64, "device": "cpu"}
    named = {name: VariableTracker.build(tx, value) for name, value in wanted.items()}
    sizes = args[0].call_method(tx, "size", [], {})
    return VariableTracker.build(tx, torch.tensor).call_function(tx, [sizes], named)


def of_process(tx: Any, name: str) -> Any:
    """What this process says to one of `process.ANSWERS`; the caller makes a condition of that."""
    return VariableTracker.build(tx, process.answer(name))
