"""Lets Dynamo trace the code that einx writes for a call, instead of looking into einx.

einx makes the code at run time and remembers it, which Dynamo can't trace. The condition is that
einx writes the same code for the same call (`conditions.einx_code`). Importing this module loads
the compiler.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import itertools
import sys
import types
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.variables import ConstantVariable, TensorVariable, UserFunctionVariable
from torch._dynamo.variables.tensor import SymNodeVariable

from npugx_cache.conditions import einx_code
from npugx_cache.trace.observe import torch_calls, unkept_calls
from npugx_cache.trace.observe.observation import Question

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugx_cache.trace.observe.observation import Recorder

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class _NotKnown(Exception):
    """Says why nothing is known of the code that einx runs for a call."""


def call(
    recorder: Recorder,
    tx: Any,
    called: types.FunctionType,
    args: list[Any],
    kwargs: dict[str, Any],
    run: Callable[[], Any],
) -> Any:
    """Call the code that einx makes, if a function of einx is called."""
    if not einx_code.is_function(called):
        return run()
    name = called.__name__
    try:
        _refuse_changed(tx)
        operands = [each.realize() for each in args]
        given = tuple(_as_written(each, tx) for each in operands)
        named = {key: _constant(each.realize(), tx) for key, each in kwargs.items()}
        arguments = _literal((given, named))
        code = einx_code.write_code(name, arguments)
        function = _function(code)
        _refuse_other_code(called, function, operands, given, named)
    except _NotKnown as why:
        raise _refuse_call(recorder, f"einx.{name} with {why}") from None
    except Exception as error:  # noqa: BLE001 - einx raises many kinds; eager raises them again
        what = f"einx.{name} makes no code for this call: {type(error).__name__}"
        raise _refuse_call(recorder, what) from None
    recorder.note(Question.GENERATED, (einx_code.MODULE, name, arguments), code)
    tx.output.tracing_context.traced_code.extend(_running(called))
    tensors = [each for each, one in zip(operands, given, strict=True) if type(one) is not str]
    return UserFunctionVariable(function).call_function(tx, tensors, {})


def _running(function: types.FunctionType) -> list[types.CodeType]:
    """The code that runs what einx writes, and would change the result if somebody edited it."""
    spaces = [vars(sys.modules[each]) for each in einx_code.RUNNING]
    found = [
        each.__code__
        for space in spaces
        for each in space.values()
        if isinstance(each, types.FunctionType) and each.__globals__ is space
    ]
    return [function.__code__, *found]


def _refuse_call(recorder: Recorder, what: str) -> unkept_calls.NotKept:
    recorder.refuse(what)
    return unkept_calls.NotKept(what)


def _as_written(operand: Any, tx: Any) -> Any:
    """What stands for an argument by position: a pattern, a tensor or a number."""
    if type(operand) is not TensorVariable:
        value = _constant(operand, tx)
        if type(value) is float:
            return {einx_code.FLOAT: repr(value)}
        if type(value) in (str, bool, int):
            return value
        raise _NotKnown(f"an operand of type {type(value).__name__}")
    if operand.python_type() not in _PLAIN:
        raise _NotKnown(f"a tensor of type {operand.python_type().__name__}")
    sizes = operand.as_proxy().node.meta["example_value"].shape
    return {einx_code.SIZES: tuple(int(each) for each in sizes)}


def _refuse_other_code(
    einxs: Callable[..., Any],
    function: Callable[..., Any],
    operands: list[Any],
    given: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    """Refuse a call for which this einx does something else than what it shows."""
    examples = [
        torch.empty(one[einx_code.SIZES], dtype=_dtype(each), device="meta")
        if type(one) is dict and einx_code.SIZES in one
        else each.as_python_constant()
        for each, one in zip(operands, given, strict=True)
    ]
    tensors = [each for each in examples if type(each) is not str]

    def whole(*_: Any) -> Any:
        return einxs(*examples, **named)

    if not torch_calls.same_calls(whole, function, tensors):
        raise _NotKnown("code that it does not run as it shows it")


def _dtype(operand: Any) -> torch.dtype:
    dtype: torch.dtype = operand.as_proxy().node.meta["example_value"].dtype
    return dtype


def _constant(variable: Any, tx: Any) -> Any:
    if type(variable) is SymNodeVariable:
        return variable.evaluate_expr(tx.output)
    if type(variable) is ConstantVariable or variable.is_python_constant():
        return variable.as_python_constant()
    raise _NotKnown("an argument that is no constant")


def _literal(arguments: Any) -> str:
    text = repr(arguments)
    try:
        if ast.literal_eval(text) == arguments:
            return text
    except ValueError:
        pass
    raise _NotKnown("an argument that is no literal")


def _refuse_changed(tx: Any) -> None:
    """Refuse a call after traced code has changed something in einx, such as the backend in force.

    einx is asked during the trace, and the change has not happened to it yet.
    """
    effects = tx.output.side_effects
    for each in effects.id_to_variable.values():
        value = getattr(each, "value", None)
        if type(value).__module__.partition(".")[0] == einx_code.MODULE and (
            each.mutation_type and effects.is_modified(each)
        ):
            raise _NotKnown("a backend that the traced code chooses")


_FILE = "<frozen einx>"
"""In the place of a file: no source fact is recorded, because a condition holds the whole text."""


@functools.cache
def _function(code: str) -> types.FunctionType:
    """The function of a text that imports torch and defines one function.

    Its globals are those of a module of torch's that has `torch` among them: Dynamo guards what the
    code reads there, and a restarted process has that module.
    """
    space = vars(torch.functional)
    imports, *defined = ast.parse(code).body
    if ast.unparse(imports) == "import torch" and len(defined) == 1:
        compiled = compile(ast.Module(defined, []), _FILE, "exec")
        [made] = (each for each in compiled.co_consts if isinstance(each, types.CodeType))
        builtin = vars(builtins).keys() - space.keys()
        if _names(made) <= {"torch"} | builtin:
            return types.FunctionType(made, space, made.co_name)
    raise _NotKnown("objects in the code that it makes")


def _names(code: types.CodeType) -> set[str]:
    """The globals that code reads, inside of nested functions too."""
    inside = (_names(each) for each in code.co_consts if isinstance(each, types.CodeType))
    reads = (each.argval for each in dis.get_instructions(code) if "_GLOBAL" in each.opname)
    return {*reads, *itertools.chain.from_iterable(inside)}
