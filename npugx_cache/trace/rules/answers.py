"""Rules for callables and instructions that Dynamo answers in another way than Python does.

What Dynamo gives is refused or corrected at the call, whichever of Dynamo's functions gave it.
Importing this module loads the compiler.
"""

from __future__ import annotations

import collections
import operator
import types
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.trace.observe import (
    builtin_answers,
    classes,
    einx_calls,
    enumerations,
    identity,
    min_max,
    numpy_numbers,
    set_up_calls,
)
from npugx_cache.trace.rules import written_names
from npugx_cache.trace.stack_value import called_name, look_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npugx_cache.trace.observe.observation import Recorder
    from npugx_cache.trace.stack_value import StackValue

_SIZES_AS_TENSOR = getattr(torch, "_shape_as_tensor", None)  # Dynamo gives the sizes
_EXPORTING = "is_in_onnx_export"  # Dynamo says False whatever is the case
_IS = frozenset(map(id, (operator.is_, operator.is_not)))
_COMPARISONS = frozenset({"lt", "le", "eq", "ne", "gt", "ge"})
_ADDITIONS = frozenset({"append", "appendleft", "extend", "extendleft", "insert", "copy"})
_SEARCHES = frozenset({"contains", "index", "count", "remove"})
"""Functions of `operator`, and methods by the names without underscores."""


def call(
    recorder: Recorder,
    tx: Any,
    callee: StackValue,
    args: list[Any],
    kwargs: dict[str, Any],
    run: Callable[[], Any],
) -> Any:
    """Run a call so that the answer is that of Python, or refuse the trace."""
    function = callee.value
    if type(function) is types.FunctionType:
        if function.__name__ == _EXPORTING and str(function.__module__).startswith("torch.onnx"):
            return builtin_answers.of_process(tx, _EXPORTING)
        run = partial(einx_calls.call, recorder, tx, function, args, kwargs, run)
        return set_up_calls.call(recorder, tx, function, args, kwargs, run)
    if function is format:
        return builtin_answers.call_format(recorder, tx, args, kwargs, run)
    if function is _SIZES_AS_TENSOR:
        return builtin_answers.call_shape_as_tensor(recorder, tx, args, kwargs, run)
    if (function is min or function is max) and "key" in kwargs:
        return min_max.call(tx, function, args, kwargs, run)
    if function is range:
        answer = run()  # since torch 2.14 Dynamo raises here, as Python does
        builtin_answers.refuse_range(recorder, args)
        return answer
    if function is str and args:
        builtin_answers.note_text(recorder, args[0])
    elif id(function) in _IS and len(args) == 2:
        identity.note_is(recorder, *args)
    elif numpy_numbers.computes(function):
        return numpy_numbers.call(callee, args, kwargs, run)
    else:
        return _call_by_name(recorder, tx, callee, args, run)
    return run()


def _call_by_name(
    recorder: Recorder, tx: Any, callee: StackValue, args: list[Any], run: Callable[[], Any]
) -> Any:
    """The same for a method, or a function of `operator` that does what the method does."""
    name = called_name(callee).strip("_")
    owner = vars(callee.variable).get("obj") if callee.owner is None else callee.owner
    operands = args if owner is None else [owner, *args]
    if name == "subclasses" and len(operands) == 1:
        return classes.call_subclasses(recorder, tx, operands[0], run)
    if name == "get" and len(operands) > 1:
        written_names.look_at_slot(recorder, tx, *operands[:2])
    if name in _COMPARISONS:
        enumerations.refuse_comparison(recorder, operands)
        if len(operands) == 2:
            identity.note_comparisons(recorder, operands[0], operands[1:])
    elif name in _SEARCHES and operands:
        return _search(recorder, tx, name, operands, run)
    elif name in _ADDITIONS or _is_deque(callee.value):
        return _run_with_deques(operands, run)
    return run()


def _search(
    recorder: Recorder, tx: Any, name: str, operands: list[Any], run: Callable[[], Any]
) -> Any:
    items = _items(operands[0])
    enumerations.refuse_comparison(recorder, [*operands[1:], *items])
    if len(operands) > 1:
        identity.note_comparisons(recorder, operands[1], items)
    return builtin_answers.as_bool(tx, run()) if name == "contains" else run()


def _is_deque(function: Any) -> bool:
    return isinstance(function, type) and collections.deque in function.__mro__


def _run_with_deques(operands: Iterable[Any], run: Callable[[], Any]) -> Any:
    answer = run()
    for each in (answer, *operands):
        if each is not None:
            builtin_answers.empty_deque(each)
    return answer


def _items(variable: Any) -> Iterable[Any]:
    """What a list or a tuple of the trace holds, or the keys of a dict."""
    items = vars(look_behind(variable).variable).get("items")
    return items if isinstance(items, (list, tuple)) else ()


def note_operands(recorder: Recorder, name: str, operands: tuple[Any, ...]) -> None:
    """Before an instruction."""
    if name == "IS_OP":
        identity.note_is(recorder, *operands)
    elif name == "COMPARE_OP":
        enumerations.refuse_comparison(recorder, operands)
        identity.note_comparisons(recorder, operands[0], operands[1:])
    elif name == "CONTAINS_OP":
        items = _items(operands[1])
        enumerations.refuse_comparison(recorder, [operands[0], *items])
        identity.note_comparisons(recorder, operands[0], items)


def mend(tx: Any, instruction: Any) -> None:
    """After an instruction: what Dynamo answers otherwise than Python."""
    name = instruction.opname
    if name == "CONTAINS_OP":
        tx.stack[-1] = builtin_answers.as_bool(tx, tx.stack[-1])
    elif name == "BINARY_OP":
        builtin_answers.empty_deque(tx.stack[-1])
    elif name == "UNPACK_EX":
        place = -1 - (instruction.argval & 0xFF)  # below the values before the star
        tx.stack[place] = builtin_answers.as_list(tx.stack[place])
