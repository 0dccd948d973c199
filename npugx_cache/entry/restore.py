"""Turns the blobs of an entry into a callable. Imports no compiler and never traces (P3).

The first call after a compile goes through this module too (P7).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from npugx_cache.backend import capture, runtime
from npugx_cache.conditions import source_facts
from npugx_cache.conditions.arguments_only import InputGuards
from npugx_cache.conditions.check import Guards
from npugx_cache.conditions.code_watch import Watch
from npugx_cache.conditions.kinds import placed_here
from npugx_cache.entry import frame
from npugx_cache.entry.artifact import (
    BINDINGS,
    CONDITIONS,
    CONSTANTS,
    LIBRARY,
    Bindings,
    Conditions,
)
from npugx_cache.errors import CorruptEntry, NpugxCacheError
from npugx_cache.portable import NotPortable, devices

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from npugx_cache.backend.inductor.library import Library
    from npugx_cache.conditions.evaluate import Scope
    from npugx_cache.portable.devices import Accelerator


@dataclass(frozen=True, slots=True)
class Specialisation:
    """One graph, ready to run for the calls that `accepts` lets through.

    `entry` is the id of its store entry, or None for one that lives in this process alone;
    `call_state` are the torch switches it was made under (`environment.call_state`), `code` is the
    code the function had then: a function can be edited in place while the process lives; `graph`
    is what `run` calls, on tensors alone.
    """

    entry: str | None
    accepts: Accepts
    run: Callable[..., Any]
    call_state: tuple[object, ...]
    code: types.CodeType
    graph: Callable[..., Any] | None = None


class Accepts(Protocol):
    """The check that a bound entry makes at every call."""

    def accept(self, scope: Scope) -> bool: ...

    def accept_quickly(self, scope: Scope) -> bool:
        """False may mean that only `accept`, which is much slower, can tell."""


@dataclass(slots=True)
class Conditional:
    """All conditions of an entry, in the form for repeated checks.

    The watch over code is built at the first check after the restore, so that the restore does not
    take longer.
    """

    facts: tuple[source_facts.SourceFact, ...]
    guards: Guards
    _watch: Watch | None = None

    def accept(self, scope: Scope) -> bool:
        if self._watch is not None:
            return self._watch.unchanged() and self.guards.accept(scope)
        try:
            # Before the facts are checked: what is patched meanwhile is seen at the next call.
            watch = Watch(self.facts)
        except NotPortable:  # what a fact is about is gone
            return False
        accepted = source_facts.hold(self.facts) and self.guards.accept(scope)
        if accepted:
            self._watch = watch
        return accepted

    def accept_quickly(self, scope: Scope) -> bool:
        watch = self._watch
        return watch is not None and self.guards.accept_quickly(scope) and watch.unchanged()


@dataclass(frozen=True, slots=True)
class Unstored:
    """The check of a graph that was never stored: torch's own guards, and what these don't see."""

    guards: Callable[[Mapping[str, Any]], bool]
    unchanged: Callable[[], bool]

    def accept(self, scope: Scope) -> bool:
        return self.guards(scope.frame_locals) and self.unchanged()

    accept_quickly = accept


GUARDS = ("full", "inputs_unsafe")
"""What is checked at every call of a bound entry; before it is bound everything is checked."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored entry's conditions, decoded; its code is not read before they hold."""

    guards: Guards
    facts: tuple[source_facts.SourceFact, ...]

    @classmethod
    def of(cls, blobs: Mapping[str, bytes]) -> Candidate:
        """Raises `CorruptEntry`."""
        with _blaming_the_entry("conditions"):
            conditions = Conditions.unpack(blobs[CONDITIONS])
            try:
                return cls(Guards(placed_here(conditions.guards)), conditions.facts)
            except NotPortable as error:
                raise CorruptEntry(f"conditions: {error!r}") from error

    def accepts(self, scope: Scope) -> bool:
        return self.guards.accept(scope) and source_facts.hold(self.facts)

    def is_of_this_code(self) -> bool:
        """Whether the code that was traced is still what it was, whatever the call is."""
        return source_facts.hold(self.facts)

    def repeated(self, scope: Scope, guards: str) -> Accepts:
        """The check for later calls of an entry that has accepted a call with this scope."""
        if guards == "inputs_unsafe":
            return InputGuards(self.guards.tree, scope)
        return Conditional(self.facts, self.guards)

    @property
    def device(self) -> Accelerator | None:
        """The accelerator that the conditions are about, as it is called in this process."""
        return self.guards.tree.device

    def failures(self, scope: Scope, code: types.CodeType) -> tuple[str, ...]:
        """Why it refuses a call of a function with this code; never empty.

        Live texts are in the words only where they stand in code: reasons go to logs. Raises
        `CorruptEntry` if no reason can be told.
        """
        known = partial(source_facts.texts, self.facts, code)
        with _blaming_the_entry("conditions"):
            found = (*source_facts.failures(self.facts), *self.guards.failures(scope, known=known))
            if not found and not self.accepts(scope):
                raise CorruptEntry("conditions: they refuse a call for no reason that can be told")
            return found or ("the call has changed while it was looked at",)


def bind(
    blobs: Mapping[str, bytes],
    function: types.FunctionType,
    *,
    entry: str | None,
    accepts: Accepts,
    call_state: tuple[object, ...],
    captures: capture.Captures | None,
    device: Accelerator | None,
) -> Specialisation:
    """Make an entry callable in the place of `function`, for the calls that `accepts` lets through.

    `device` is the candidate's: what the entry calls the current device is that one from now on.
    `captures` are the captured graphs of the function; None: its programs are called directly.
    Raises `CorruptEntry` for bytes that do not decode and `NotPortable` when something the entry
    refers to (an operator, a class) does not exist in this process.
    """
    with _blaming_the_entry("bindings"):
        return _bind(
            blobs,
            function,
            entry=entry,
            accepts=accepts,
            call_state=call_state,
            captures=captures,
            device=device,
        )


@contextlib.contextmanager
def _blaming_the_entry(part: str) -> Iterator[None]:
    """Turn whatever this block raises into `CorruptEntry`: the stored data is to blame.

    Otherwise an entry that decodes and makes no sense would cost a traceback at every call. A lack
    of memory says nothing about the entry and is not turned.
    """
    try:
        yield
    except (NpugxCacheError, NotPortable, OSError):
        raise
    except Exception as error:
        from npugx_cache.interruptions import let_through

        let_through(error)
        raise CorruptEntry(f"{part}: {error!r}") from error


def _bind(
    blobs: Mapping[str, bytes],
    function: types.FunctionType,
    *,
    entry: str | None,
    accepts: Accepts,
    call_state: tuple[object, ...],
    captures: capture.Captures | None,
    device: Accelerator | None,
) -> Specialisation:
    rename = devices.at(device.index if device else None)
    bindings = Bindings.unpack(blobs[BINDINGS]).placed(rename)
    graph: Callable[..., Any] = _no_graph
    if bindings.program_code:
        constants = _constants(bindings, blobs)
        program = runtime.bind(
            frame.load(bindings.program_code),
            bindings.operators,
            constants,
            disable_autocast=bindings.disable_autocast,
            rename=rename,
        )
        if bindings.library is not None:
            program = _with_library(bindings, bindings.library, blobs, program, constants)
        graph = capture.runner_of(program, bindings.layout, tuple(constants.values()), captures)
    run = frame.bind(bindings.frame, function, graph)
    return Specialisation(entry, accepts, run, call_state, function.__code__, graph)


def _with_library(
    bindings: Bindings,
    library: Library,
    blobs: Mapping[str, bytes],
    program: Callable[..., Any],
    constants: Mapping[str, torch.Tensor],
) -> Callable[..., Any]:
    """The library of an entry, with its program for the calls that the library can't serve."""
    from npugx_cache.backend.inductor import load

    finish = runtime.bind(
        frame.load(library.finish_code), library.finish_operators, {}, disable_autocast=False
    )
    return load.bind(
        library,
        load.load(blobs[LIBRARY]),
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
    except runtime.OutOfMemoryError:  # of the device: the entry is as good as ever
        raise
    except (SafetensorError, KeyError, RuntimeError) as error:
        raise CorruptEntry(f"constants: {error!r}") from error
