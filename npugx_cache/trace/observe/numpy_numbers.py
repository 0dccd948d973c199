"""Makes a float of NumPy's a constant of a trace, where Dynamo would make an array of the float.

`x / np.sqrt(64)` and a module's `self.scale = np.float64(0.5)` are floats for Python, and for the
operators of a tensor. Dynamo makes arrays without dimensions of such floats, and an array gives
other dtypes; so that is refused (`builtin_answers.refuse_number`). As a constant the number is what
eager takes it for: Python computes with the number itself, and an operator of a tensor takes the
Python float of the same value. What else gets the number from the graph may ask for its type
(`torch.tensor` does), so that is refused. Other numbers of NumPy's stay refused, because only
`numpy.float64` is a float for Python. Importing this module loads the compiler.
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.variables import ConstantVariable

from npugx_cache.conditions import source_facts
from npugx_cache.portable import NotPortable, identity, is_float_of_numpy, look_up
from npugx_cache.trace.observe import observation
from npugx_cache.trace.observe.observation import Question

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder
    from npugx_cache.trace.stack_value import StackValue

REFUSED = "a number of NumPy's (float() makes it Python's) is {}"

_OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"),
    *("lt", "le", "gt", "ge", "eq", "ne"),
)
_FUNCTIONS = (
    *("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "pow"),
    *("clamp", "where", "masked_fill"),
)
_TAKING_FLOATS = frozenset(
    {
        *(getattr(operator, name) for name in _OPERATORS),
        *(getattr(torch, name) for name in _FUNCTIONS),
        *_FUNCTIONS,
        *(f"{name}_" for name in _FUNCTIONS),
        torch.nn.functional.layer_norm,
        torch.nn.functional.scaled_dot_product_attention,
    }
)
"""Functions, and methods of a tensor, that take a `numpy.float64` for the float that it is.

With a tensor of any dtype, and a number on either side, they give what they give for the float."""


def is_constant(value: object) -> bool:
    """Whether it is a number of NumPy's that is a constant of a trace."""
    return is_float_of_numpy(value) or _is_truth_value(value)


def _is_truth_value(value: object) -> bool:
    """Whether it is what a comparison of two numbers of NumPy's gives.

    Code may branch on it; torch.fx refuses to put it into a graph.
    """
    return type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")


@observation.around
def keep_number(
    recorder: Recorder, make: Callable[..., None], variable: Any, *given: Any, **arguments: Any
) -> None:
    """Dynamo makes a float of it, and `type(number)` and `number.dtype` would say so."""
    make(variable, *given, **arguments)
    # Since torch 2.15 there may be none: a class derived from `str` has its value elsewhere.
    value: Any = given[0] if given else arguments.get("value")
    if is_float_of_numpy(value):
        variable.value = value
        _note_texts(recorder)
        if variable.source is None and not _is_computed_alike(value):
            recorder.refuse(REFUSED.format(f"computed, and numpy.seterr() tells how {value} is"))


def _note_texts(recorder: Recorder) -> None:
    """The text of the number depends on `numpy.set_printoptions(legacy=...)`."""
    function: Any = look_up(*source_facts.PRINT_OPTIONS)
    try:
        answer = source_facts.asked_again(function, "")
    except NotPortable:
        recorder.refuse(REFUSED.format("printed as numpy.set_printoptions() tells"))
    else:
        recorder.note(Question.CONSTANT, function, ("", answer))


def _is_computed_alike(result: float) -> bool:
    """Whether a computation with this result meets no error that `numpy.seterr()` is about."""
    return sys.float_info.min <= abs(result) < float("inf")


def as_floats(recorder: Recorder, target: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a call in the graph, with floats of Python's for those of NumPy's."""
    given, named = tuple(args or ()), dict(kwargs or {})
    if not any(map(_holds, (*given, *named.values()))):
        return args, kwargs
    numbers = tuple(map(_as_float, given))
    plain = {name: _as_float(value) for name, value in named.items()}
    all_taken = not any(map(_holds, (*numbers, *plain.values())))
    if all_taken and target in _TAKING_FLOATS and any(map(_is_tensor, numbers)):
        return numbers, plain
    name = getattr(target, "__name__", str(target))
    recorder.refuse(REFUSED.format(f"given to {name}, which may ask for its type"))
    return args, kwargs


def _as_float(argument: Any) -> Any:
    return float(argument) if is_float_of_numpy(argument) else argument


def _holds(argument: Any) -> bool:
    found: list[bool] = []
    fx.node.map_aggregate(argument, lambda each: found.append(is_float_of_numpy(each)))
    return any(found)


def _is_tensor(argument: Any) -> bool:
    """Not a symbolic size: the product of a size and a float of NumPy's is one of NumPy's."""
    is_node = isinstance(argument, fx.Node)
    return is_node and isinstance(argument.meta.get("example_value"), torch.Tensor)


def computes(function: object) -> bool:
    """Whether it may be a function of NumPy's that gives a number for numbers."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and (function is numpy.float64 or type(function) is numpy.ufunc)


def call(
    callee: StackValue, args: list[Any], kwargs: dict[str, Any], run: Callable[[], Any]
) -> Any:
    """Call a function of NumPy's that gets numbers, and nothing else."""
    if callee.source and not kwargs and _is_named(callee.value):
        result = _result(callee.value, args)
        if result is not None:
            install_guard(callee.source.make_guard(GuardBuilder.ID_MATCH))
            return ConstantVariable.create(result)
    return run()


def _is_named(function: Any) -> bool:
    """Whether it is `numpy.float64`, or a ufunc that another process finds by its name.

    `numpy.frompyfunc` makes a ufunc of any function; such a ufunc has no name.
    """
    try:
        return computes(function) and identity(function) is not None
    except NotPortable:
        return False


def _result(function: Any, args: list[Any]) -> Any:
    """A float of NumPy's, or None where the function gives something else, or warns.

    A size that is symbolic becomes a constant, with a guard of torch's on the size.
    """
    if not all(each.is_python_constant() or hasattr(each, "evaluate_expr") for each in args):
        return None
    numbers = [
        each.as_python_constant() if each.is_python_constant() else each.evaluate_expr()
        for each in args
    ]
    if not all(type(each) in (bool, int, float) or is_float_of_numpy(each) for each in numbers):
        return None
    numpy: Any = sys.modules["numpy"]
    try:
        with numpy.errstate(all="raise"):
            result = function(*numbers)
    except (ArithmeticError, TypeError, ValueError):  # eager warns, or raises the same
        return None
    return result if is_float_of_numpy(result) else None
