"""Tells whether the function itself may run a call whose compiled graph raised.

A trace works with fake tensors, and torch's fake tensors sometimes have other strides than the
operator gives (a sum of a transposed and a contiguous tensor with a batch of one, for example).
An operator that relies on these strides then raises in the graph, and runs in the function.
Without a second run, such a graph would end each call of the worker (P2).
"""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend.capture.layout import Role
from npugx_cache.backend.program import COLLECTIVES, STREAMS
from npugx_cache.backend.runtime import PROGRAM_FILE
from npugx_cache.interpreter.interruptions import from_outside
from npugx_cache.portable import module_of
from npugx_cache.private import schemas
from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npugx_cache.backend.capture.layout import Layout
    from npugx_cache.backend.program import Operator
    from npugx_cache.entry.restore import Specialisation


class Failure(NamedTuple):
    """A graph whose program raised at a call that the function itself may run.

    `by_data` is True where the graph is right, and the data of this one call give sizes that the
    graph was not traced for (`trace/data_sizes`).
    """

    graph: Specialisation
    text: str
    by_data: bool


def failure_of(graphs: Iterable[Specialisation], error: Exception) -> Failure | None:
    """The graph whose program raised `error`, if the function itself may run that call."""
    for graph in graphs:
        if program_raised(error, graph.run):
            if lasting_effect(graph.operators, graph.layout) is not None:
                return None
            text = f"{type(error).__name__}: {error}".partition("\n")[0]
            return Failure(graph, text, by_data=_met_other_sizes(error))
    return None


_CHECKS = ("aten__assert_scalar", "aten__assert_tensor_metadata")


def _met_other_sizes(error: Exception) -> bool:
    """Whether a check of sizes raised, and not an operator that computes something."""
    at = None
    below = error.__traceback__
    while below is not None:
        if below.tb_frame.f_code.co_filename == PROGRAM_FILE:
            at = below  # the innermost: a repeated block is a function that `forward` calls
        below = below.tb_next
    if at is None:
        return False
    # The first global that a line names is what it calls; arguments may be globals as well.
    names = (
        str(instruction.argval)
        for instruction in dis.get_instructions(at.tb_frame.f_code)
        if instruction.opname == "LOAD_GLOBAL"
        and instruction.positions is not None
        and instruction.positions.lineno == at.tb_lineno
    )
    return next(names, "").startswith(_CHECKS)


def program_raised(error: Exception, caller: Callable[..., Any]) -> bool:
    """Whether `error` comes from the program of the graph that this bound caller frame calls.

    The caller frame must be the first frame below the one that caught the error: deeper in the
    traceback may be a graph of another cached function. The frame replays the function's side
    effects after its program, so none has happened yet.
    """
    below = error.__traceback__.tb_next if error.__traceback__ is not None else None
    if below is None or below.tb_frame.f_code is not getattr(caller, "__code__", None):
        return False
    files = []
    while below is not None:
        files.append(below.tb_frame.f_code.co_filename)
        below = below.tb_next
    if PROGRAM_FILE not in files or not _is_of_an_operator(error):
        return False
    return from_outside(error) is None and not _lacks_memory(error)


def _is_of_an_operator(error: Exception) -> bool:
    """Whether the error is of a class that torch's operators raise.

    Other errors come from elsewhere, such as one that another thread raises in this thread.
    """
    of_torch = module_of(type(error)).partition(".")[0] in ("builtins", "torch")
    return of_torch and isinstance(error, _RAISED_BY_OPERATORS)


_RAISED_BY_OPERATORS = (RuntimeError, ValueError, TypeError, LookupError, AssertionError)


def _lacks_memory(error: Exception) -> bool:
    """Whether a second run would need memory that is not there."""
    lacking = isinstance(error, torch.OutOfMemoryError)
    return lacking or "can't allocate memory" in str(error)


def lasting_effect(operators: Iterable[Operator], layout: Layout | None) -> str | None:
    """What a run of a program may have done before it raised, or None if a second run is safe."""
    for operator in operators:
        if operator.namespace == STREAMS:
            return "it uses streams"
        if effect := effect_of(operator):
            return effect
    if layout is not None and layout.positions(Role.WRITTEN):
        return "it writes to its inputs"
    return None


def effect_of(operator: Operator) -> str | None:
    """The effect of an operator that is not in its results, or None."""
    name = f"{operator.namespace}.{operator.name}"
    if operator.namespace == COLLECTIVES:
        return f"it calls {name}, which all ranks call together"
    packet = getattr(getattr(torch.ops, operator.namespace or "aten"), operator.name, None)
    called = getattr(packet, operator.overload or "default", None)
    if not schemas.is_operator(called) or not schemas.is_custom(called):
        return None
    if schemas.acts(called):
        return f"it calls {name}, which has no result, so that it must have an effect"
    return f"it calls {name}, an operator of another package, which may have an effect"
