"""Binds a program to live operators and constants, so that it can run. Loads no compiler."""

from __future__ import annotations

import builtins
import math
import operator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend.capture.updatable import UPDATABLE, key
from npugx_cache.backend.program import HIGHER_ORDER, MAIN, SCOPES, STREAMS
from npugx_cache.portable import NotPortable, resolve_op
from npugx_cache.private import runtime
from npugx_cache.private.direct import call_of

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Mapping, Sequence

    from npugx_cache.backend.program import Constant, Operator, Program
    from npugx_cache.backend.streams import Streams
    from npugx_cache.portable.devices import Rename

_MODULES: dict[str, Any] = {
    "builtins": builtins,
    "math": math,
    "operator": operator,
    "torch": torch,
}


class _Devices(dict[str, torch.device]):
    """The `torch.device` for each device name in a program, under this process's name for it."""

    def __init__(self, rename: Rename) -> None:
        super().__init__()
        self._rename = rename

    def __missing__(self, name: str) -> torch.device:
        made = self[name] = torch.device(self._rename(name))
        return made


PROGRAM_FILE = "<npugx_cache program>"
"""The file name of a program's code in tracebacks."""

_STREAMS = "npugx_streams"
"""The attribute of a bound program that holds its `Streams`, if it has stream labels."""

_LIMITS_CORES = "npugx_limits_cores"
"""The attribute that marks a bound program in which a scope limits cores."""


def compiled(text: str) -> types.CodeType:
    """The code object of the module that `codegen.source_text` writes for a program."""
    return compile(text, PROGRAM_FILE, "exec", dont_inherit=True)


def bind(
    code: types.CodeType,
    operators: Sequence[tuple[str, Operator]],
    constants: Mapping[str, torch.Tensor],
    *,
    disable_autocast: bool,
    rename: Rename | None = None,
    hand_over: Callable[[], Mapping[int, Any]] | None = None,
) -> Callable[..., Any]:
    """Make a compiled program callable. Raises `NotPortable` for an unregistered operator.

    `operators` pairs each global name in the code with its operator. `hand_over` gives the streams
    and events of each call; None: those that a caller frame hands over. `rename` maps the names of
    devices in the code to those of this process. The callable takes the graph's inputs in order;
    the only tensors that it keeps alive are the constants.
    """
    device = torch.device if rename is None else _Devices(rename).__getitem__
    namespace: dict[str, Any] = {"torch": torch, "device": device, **constants}
    streams = None
    for name, target in operators:
        if target.namespace == STREAMS:
            streams = streams or _streams(hand_over)
            namespace[name] = streams.operator(target.name)
        else:
            namespace[name] = _target(target)
    exec(code, namespace)  # noqa: S102 - text generated from a validated Program
    function: Callable[..., Any] = namespace[MAIN]
    if streams is not None:
        function = streams.around(function)
    scopes = {t.name for _, t in operators if t.namespace == "npugx_cache"} & SCOPES.keys()
    if scopes:
        function = _with_scopes_closed(function)
    if disable_autocast:
        function = without_autocast(function)
    if streams is not None:
        setattr(function, _STREAMS, streams)
    if "limit_cores" in scopes:
        setattr(function, _LIMITS_CORES, True)
    return function


def _streams(hand_over: Callable[[], Mapping[int, Any]] | None) -> Streams:
    from npugx_cache.backend.streams import Seen, Streams  # few programs have any

    return Streams(Seen()) if hand_over is None else Streams(Seen(), hand_over)


def streams_of(program: Callable[..., Any]) -> Streams | None:
    """The `Streams` of a bound program; None if it has no stream labels."""
    streams: Streams | None = getattr(program, _STREAMS, None)
    return streams


def limits_cores(program: Callable[..., Any]) -> bool:
    """Whether a scope in a bound program limits cores."""
    return getattr(program, _LIMITS_CORES, False)


def bind_program(
    program: Program,
    constants: Mapping[str, torch.Tensor],
    hand_over: Callable[[], Mapping[int, Any]] | None = None,
) -> Callable[..., Any]:
    """Compile and bind in one step, for a program that is not stored."""
    from npugx_cache.backend.codegen import operator_names, source_text

    names = zip(operator_names(program), program.operators, strict=True)
    return bind(
        compiled(source_text(program)),
        tuple(names),
        constants,
        disable_autocast=program.disable_autocast,
        hand_over=hand_over,
    )


def _target(target: Operator) -> Any:
    if (fault := target.fault()) is not None:
        raise NotPortable(fault)
    if target.namespace == "npugx_cache":
        import_module("npugx_cache.backend.operators")  # registers the operators
    if target.namespace == HIGHER_ORDER:  # few programs have control flow
        return import_module("npugx_cache.backend.control_flow").OPERATORS[target.name]
    if target.namespace:
        names = UPDATABLE.get(key(*target))
        operator = resolve_op(*target)
        return call_of(operator) if names is None else _updatable(operator, names)
    module, _, name = target.name.partition(".")
    return getattr(_MODULES[module], name)


def _with_scopes_closed(function: Callable[..., Any]) -> Callable[..., Any]:
    scopes_closed = import_module("npugx_cache.backend.operators").scopes_closed

    def run(*inputs: Any) -> Any:
        with scopes_closed():
            return function(*inputs)

    return run


def _updatable(operator: Any, names: Sequence[str]) -> Any:
    from npugx_cache.backend.capture.tasks import UpdatableCall

    return UpdatableCall(operator, names)


def without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        with runtime.disable_autocast():
            return function(*inputs)

    return run


OutOfMemoryError = torch.OutOfMemoryError
"""Raised if a device has no room for a constant; the stored constant is not at fault."""


def live_constant(constant: Constant, contiguous: torch.Tensor) -> torch.Tensor:
    """Copy a constant from its contiguous form to its device, with its own strides."""
    tensor = torch.empty_strided(
        constant.size, constant.stride, dtype=contiguous.dtype, device=constant.device
    )
    return tensor.copy_(contiguous)
