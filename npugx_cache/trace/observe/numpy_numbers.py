"""Makes numbers of NumPy's constants of a trace, where Dynamo would make arrays of them.

`x / np.sqrt(64)` and a module's `self.scale = np.float64(0.5)` are floats for Python and for
tensors. Dynamo makes arrays without dimensions of both, and an array gives other dtypes; that is
refused (`builtin_answers.refuse_number`). As constants they are what eager takes them for: Python
computes with the number itself, and an operator of torch takes a float of the same value. Only
`numpy.float64` is a float; other numbers of NumPy's stay refused, because Dynamo would not find
their operators. Importing this module loads the compiler.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.variables import ConstantVariable

from npugx_cache.portable import NotPortable, identity, is_float_of_numpy
from npugx_cache.trace.observe import observation

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder


@observation.around
def taken_for_a_literal(_: Recorder, is_literal: Callable[[object], bool], value: object) -> bool:
    return is_literal(value) or is_float_of_numpy(value)


@observation.around
def kept(
    _: Recorder, make: Callable[..., None], variable: Any, value: Any, **arguments: Any
) -> None:
    """Dynamo makes a float of it, and `type(number)` and `number.dtype` would say so."""
    make(variable, value, **arguments)
    if is_float_of_numpy(value):
        variable.value = value


@observation.around
def given_as_number(_: Recorder, as_proxy: Callable[[Any], Any], variable: Any) -> Any:
    value = as_proxy(variable)
    return float(value) if is_float_of_numpy(value) else value


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
    """A float of NumPy's, or None where the function does not only compute one: it may warn.

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
