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

from npugx_cache.portable import NotPortable, identity, is_float_of_numpy
from npugx_cache.trace.observe import observation

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder

REFUSED = "a number of NumPy's (float() makes it Python's) is {}"

_OF_TENSORS = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
        *(operator.mod, operator.pow),
        *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv),
        *(operator.imod, operator.ipow),
        *(operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
    }
)
"""Between a tensor and a `numpy.float64`, on either side, these give what they give for a float."""

_BY_NAME = {
    torch.nn.functional.scaled_dot_product_attention: frozenset({"scale"}),
    torch.nn.functional.layer_norm: frozenset({"eps"}),
}
"""Functions with parameters that take any float for one of Python's."""


@observation.around
def taken_for_a_literal(_: Recorder, is_literal: Callable[[object], bool], value: object) -> bool:
    return is_literal(value) or is_float_of_numpy(value)


@observation.around
def kept(
    recorder: Recorder, make: Callable[..., None], variable: Any, value: Any, **arguments: Any
) -> None:
    """Dynamo makes a float of it, and `type(number)` and `number.dtype` would say so."""
    make(variable, value, **arguments)
    if is_float_of_numpy(value):
        variable.value = value
        if variable.source is None and not _is_computed_alike(value):
            recorder.refuse(REFUSED.format("computed, and numpy.seterr() tells how"))


def _is_computed_alike(result: float) -> bool:
    """Whether a computation with this result meets no error that `numpy.seterr()` is about."""
    return sys.float_info.min <= abs(result) < float("inf")


def as_floats(recorder: Recorder, target: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a call in the graph, with floats of Python's for those of NumPy's."""
    given = [*(args or ()), *(kwargs or {}).values()]
    if not any(map(_holds, given)):
        return args, kwargs
    named = _BY_NAME.get(target, frozenset())
    plain = {
        name: float(value) if name in named and is_float_of_numpy(value) else value
        for name, value in (kwargs or {}).items()
    }
    numbers = tuple(float(each) if is_float_of_numpy(each) else each for each in args or ())
    takes = target in _OF_TENSORS and any(map(_is_tensor, numbers))
    if any(map(_holds, plain.values())) or any(map(_holds, numbers if takes else args or ())):
        name = getattr(target, "__name__", str(target))
        recorder.refuse(REFUSED.format(f"given to {name}, which may ask for its type"))
        return args, kwargs
    return numbers if takes else args, plain


def _holds(argument: Any) -> bool:
    found = []
    fx.node.map_aggregate(argument, lambda each: found.append(is_float_of_numpy(each)))
    return any(found)


def _is_tensor(argument: Any) -> bool:
    """Not a symbolic size: the product of a size and a float of NumPy's is one of NumPy's."""
    is_node = isinstance(argument, fx.Node)
    return is_node and isinstance(argument.meta.get("example_value"), torch.Tensor)


@observation.around
def computing(
    _: Recorder,
    call: Callable[..., Any],
    variable: Any,
    tx: Any,
    args: list[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Call a function of NumPy's that gets numbers, and nothing else."""
    if variable.source and not kwargs and _is_named(variable.value):
        result = _result(variable.value, args)
        if result is not None:
            install_guard(variable.source.make_guard(GuardBuilder.ID_MATCH))
            return ConstantVariable.create(result)
    return call(variable, tx, args, kwargs)


def _is_named(function: Any) -> bool:
    """Whether it is `numpy.float64`, or a ufunc that another process finds by its name.

    `numpy.frompyfunc` makes a ufunc of any function; such a ufunc has no name.
    """
    numpy: Any = sys.modules["numpy"]
    try:
        computes = function is numpy.float64 or isinstance(function, numpy.ufunc)
        return computes and identity(function) is not None
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
