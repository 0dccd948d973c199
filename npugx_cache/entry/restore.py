"""Turns the blobs of an entry into a callable. Imports no compiler and never traces (P3).

What was just compiled goes through this module as well (P7).
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from npugx_cache.backend import capture, runtime
from npugx_cache.conditions import source_facts
from npugx_cache.conditions.check import Checker
from npugx_cache.conditions.kinds import placed_here
from npugx_cache.entry import frame
from npugx_cache.entry.artifact import (
    BINDINGS,
    CONSTANTS,
    LIBRARY,
    Bindings,
    conditions_of,
)
from npugx_cache.errors import CorruptEntry, NpugxCacheError
from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.passing import is_passing
from npugx_cache.portable import NotPortable, devices
from npugx_cache.private.runtime import without_torch_function
from npugx_cache.records import dataclass

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from npugx_cache.backend.capture.layout import Layout
    from npugx_cache.backend.inductor.library import Library
    from npugx_cache.backend.program import Operator
    from npugx_cache.conditions import Conditions
    from npugx_cache.conditions.argument_facts import Pinned
    from npugx_cache.conditions.evaluate import Scope
    from npugx_cache.portable.devices import Accelerator


if TYPE_CHECKING:  # protocols are made slowly

    class Repeated(Protocol):
        """The conditions of a bound graph, as they are checked at every call."""

        def holds(self, scope: Scope) -> bool: ...

        def holds_quickly(self, scope: Scope) -> bool:
            """False may mean that only `holds`, which is much slower, can tell."""

        def let_go(self) -> None:
            """Keep nothing of a model until the next check."""

        def pinned_facts(self) -> Pinned:
            """What is demanded of arguments exactly; a call with another fact is not accepted."""


@dataclass(frozen=True, slots=True)
class Specialisation:
    """One graph, ready to run every call for which its conditions hold.

    `entry` is the id of its store entry, or None if the graph is not stored. `switches` are torch's
    switches under which the graph was made. `code` is the code of the function at that time,
    because a function can be edited in place. `run` takes the arguments of the function; it calls
    `graph`, which takes tensors and sizes. `operators` and `layout` are those of the graph's
    program. `is_direct`: `graph` is the program itself, and captures nothing.
    """

    entry: str | None
    conditions: Repeated
    run: Callable[..., Any]
    switches: tuple[object, ...]
    code: types.CodeType
    graph: Callable[..., Any] | None = None
    operators: tuple[Operator, ...] = ()
    layout: Layout | None = None
    is_direct: bool = False

    def holds(self, scope: Scope) -> bool:
        """Whether the graph may run a call."""
        return self._is_made_for(scope) and self.conditions.holds(scope)

    def holds_quickly(self, scope: Scope) -> bool:
        """Fast path of `holds`: True means that the graph may run, False that nothing is known."""
        return self._is_made_for(scope) and self.conditions.holds_quickly(scope)

    def _is_made_for(self, scope: Scope) -> bool:
        return self.code is scope.code and self.switches == scope.switches


GUARDS = ("full", "inputs_unsafe")
"""The values of the option `guards`: what is checked at every call of a bound entry. Before an
entry is bound, all its conditions are checked."""


@contextlib.contextmanager
def _blaming_the_entry(part: str, *others: type[Exception]) -> Iterator[None]:
    """Raise `CorruptEntry` for an exception in this block, because the entry's data is to blame.

    Otherwise an entry that decodes but makes no sense would cost a traceback at every call. Errors
    of ours, OSErrors, `others`, a lack of memory and what passes by itself, such as an import that
    can't open a file, go through as they are.
    """
    as_they_are: tuple[type[Exception], ...] = (NpugxCacheError, OSError, *others)
    try:
        yield
    except as_they_are:
        raise
    except Exception as error:
        let_through(error)
        if is_passing(error):
            raise
        raise CorruptEntry(f"{part}: {error!r}") from error


def candidate(blobs: Mapping[str, bytes]) -> Checker:
    """The conditions of a stored entry, ready to be checked; raises `CorruptEntry`.

    The caller reads the entry's code only after the conditions hold.
    """
    with _blaming_the_entry("conditions"):
        return Checker(placed_here(conditions_of(blobs)))


def repeated_check(checker: Checker, scope: Scope, guards: str) -> Repeated:
    """The check for later calls of an entry; its conditions have held for the call in `scope`."""
    if guards == "inputs_unsafe":
        from npugx_cache.conditions.arguments_only import ArgumentsOnly

        return ArgumentsOnly(checker.conditions, scope)
    return checker


NO_CODE: Any = (lambda: None).__code__
"""The code of no function: a piece has none, so no text of a reason is known from it."""


def failures(checker: Checker, scope: Scope, code: types.CodeType) -> tuple[str, ...]:
    """The reasons of `refusal` alone."""
    return refusal(checker, scope, code)[1]


def refusal(checker: Checker, scope: Scope, code: types.CodeType) -> tuple[str, tuple[str, ...]]:
    """Why conditions refuse a call of a function with this code: a kind, and reasons, at least one.

    The kind says what the first reason is about, as one of `counters.MISS_REASONS`.
    A reason shows a live text only if the text stands in the code, because reasons go to logs.
    Raises `CorruptEntry` if no reason can be found.
    """
    known = partial(source_facts.texts, checker.conditions, code)
    with _blaming_the_entry("conditions"):
        kind, found = checker.refusal(scope, known=known)
        if not found and not checker.holds(scope):
            raise CorruptEntry("conditions: they refuse a call, but no reason can be found")
        return kind, tuple(found) or ("the arguments changed while they were checked",)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class BoundProgram:
    """The program of an entry, ready to run on the tensors and sizes that the graph takes."""

    bindings: Bindings
    run: Callable[..., Any]
    constants: tuple[torch.Tensor, ...]

    def make_runner(self, captures: capture.Captures | None, layout: Layout | None) -> Any:
        """What runs the program, with captured graphs of its own if there are `captures`."""
        return capture.runner_of(self.run, layout, self.constants, captures)


@_blaming_the_entry("bindings", NotPortable)
def bind_program(
    blobs: Mapping[str, bytes],
    device: Accelerator | None,
    hand_over: Callable[[], Mapping[int, Any]] | None = None,
) -> BoundProgram:
    """Make the program of an entry callable.

    `device` is the device that the entry's "current device" means from now on. `hand_over` gives
    the streams and events of each call. Raises `CorruptEntry` for bytes that do not decode, and
    `NotPortable` if something that the entry refers to (an operator) does not exist in this
    process.
    """
    rename = devices.at(device.index if device else None)
    bindings = Bindings.unpack(blobs[BINDINGS]).rename_devices(rename)
    if not bindings.program_code:
        return BoundProgram(bindings, _no_graph, ())
    constants = _constants(bindings, blobs)
    program = runtime.bind(
        frame.load(bindings.program_code),
        bindings.operators,
        constants,
        disable_autocast=bindings.disable_autocast,
        rename=rename,
        hand_over=hand_over,
    )
    if bindings.library is not None:
        program = _with_library(bindings, bindings.library, blobs, program, constants)
    return BoundProgram(bindings, program, tuple(constants.values()))


@_blaming_the_entry("bindings", NotPortable)
def bind(
    blobs: Mapping[str, bytes],
    function: types.FunctionType,
    *,
    entry: str | None,
    conditions: Repeated,
    switches: tuple[object, ...],
    captures: capture.Captures | None,
    demanded: Conditions,
) -> Specialisation:
    """Make an entry callable in the place of `function`, for calls for which `conditions` hold.

    `captures` are the captured graphs of the function; if None, programs are called directly.
    `demanded` are the entry's conditions as data. The rest is as `bind_program` says.
    """
    program = bind_program(blobs, demanded.device)
    bindings = program.bindings
    if bindings.frame is None:
        raise CorruptEntry("bindings: a piece in the place of a function")
    graph: Callable[..., Any] = program.run
    if bindings.program_code:
        graph = program.make_runner(captures, bindings.layout)
    called = graph
    if bindings.parts:
        from npugx_cache.backend import inner_tensors

        called = inner_tensors.taking_apart(graph, bindings.parts)
    if demanded.holds_derived_tensors:
        called = _without_torch_function(called)
    run = frame.bind(bindings.frame, function, called)
    operators = tuple(operator for _, operator in bindings.operators)
    code = function.__code__
    is_direct = graph is program.run
    return Specialisation(
        *(entry, conditions, run, switches, code, graph, operators, bindings.layout, is_direct)
    )


def _without_torch_function(called: Callable[..., Any]) -> Callable[..., Any]:
    """A program whose operators take a tensor of any class for a plain one.

    The trace went through the `__torch_function__` of the classes, so that the program has what it
    does, and an operator of the program must not come to it again.
    """

    def run(*values: Any) -> Any:
        with without_torch_function():
            return called(*values)

    return run


def _with_library(
    bindings: Bindings,
    library: Library,
    blobs: Mapping[str, bytes],
    program: Callable[..., Any],
    constants: Mapping[str, torch.Tensor],
) -> Callable[..., Any]:
    """The library of an entry as a callable. `program` runs the calls that the library can't."""
    from npugx_cache.backend.inductor import load

    run: load.Compiled
    if library.engine == "ge":
        from npugx_cache.backend.ge import load as graph_engine

        run = graph_engine.load(blobs[LIBRARY])
    else:
        run = load.load(blobs[LIBRARY])
    finish = runtime.bind(
        frame.load(library.finish_code), library.finish_operators, {}, disable_autocast=False
    )
    return load.bind(
        library,
        run,
        finish,
        tuple(constants.values()),
        program,
        disable_autocast=bindings.disable_autocast,
    )


def _no_graph(*_: Any) -> Any:
    raise CorruptEntry("the caller frame calls a graph that the entry does not hold")


def _constants(bindings: Bindings, blobs: Mapping[str, bytes]) -> dict[str, torch.Tensor]:
    if not bindings.constants:
        return {}
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        stored = load(blobs[CONSTANTS])
        return {c.name: runtime.live_constant(c, stored[c.name]) for c in bindings.constants}
    except runtime.OutOfMemoryError:  # the device has no memory left; the entry is not to blame
        raise
    except (SafetensorError, KeyError, RuntimeError) as error:
        raise CorruptEntry(f"constants: {error!r}") from error
