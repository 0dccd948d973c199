"""Watches the devices among the constants of a trace: where each comes from, and who reads it.

Dynamo folds `x.device` into a constant, index included. If the trace only passes the constant on,
the graph means "the device of x" and works on any device of the kind. If the traced code looks at
the index, or names an index itself, the graph means this index. So we note each place where Dynamo
makes or reads such a constant, unless we know the place to be harmless.

Importing this module loads the compiler.
"""

from __future__ import annotations

import functools
import os
import pathlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import codegen
from torch._subclasses.fake_tensor import FakeTensorMode

from npugx_cache.private import runtime
from npugx_cache.trace.observe import observation
from npugx_cache.trace.observe.observation import Question

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator

    from npugx_cache.trace.observe.observation import Recorder


@dataclass
class _Accelerator:
    """The kind of the accelerator, such as "npu"; "" where there is none."""

    kind: str = ""


def begin(recorder: Recorder, unseen: str | None) -> None:
    """Begin to note what a trace does with devices of the accelerator, if there is one.

    `unseen`: why the hooks can't see everything in this torch, or None.
    """
    kind = runtime.accelerator() or ""
    recorder.state(_Accelerator).kind = kind
    if not kind:
        return
    if unseen:
        recorder.note(Question.INDEX, None, unseen)
    if torch.accelerator.device_count() > 1:
        # The cache keeps results of factories without an index, whichever device was current.
        FakeTensorMode.cache_clear()


def _watching(value: object) -> Recorder | None:
    """Where to note what is done with a value, if that is a device of the accelerator."""
    recorder = observation.current()
    if recorder is None or type(value) is not torch.device or value.index is None:
        return None
    return recorder if value.type == recorder.state(_Accelerator).kind else None


_HANDED_ON = "proxy_args_kwargs"
"""The function of Dynamo that turns constants into arguments of a call in the graph."""
_FRAMES = 12

_PASSING_BY = frozenset(
    {
        "as_python_constant",
        "as_proxy",
        "get_real_python_backed_value",
        "guarded_method",
        "realize_and_forward",
        "inherited",
        "call",
        "<listcomp>",
        "<genexpr>",
        "<dictcomp>",
        "<lambda>",
    }
)
"""Functions that only pass a value on, so that we look at their caller. Known by name; hooks of
ours are known by their code (`observation.passes_on`)."""

_READS_EQUALITY = frozenset(
    {
        "compare_by_value",
        "python_constant_richcompare_impl",
        "is_python_equal",
        "iter_contains",
        "is_constant_match",
        "is_constant_none",
        # The order of a set depends on hashes, but is a condition of its own.
        *("hash_impl", "get_python_hash"),
        "python_type",
        "vt_identity_compare",
        "__repr__",
    }
)
"""Functions of Dynamo that compare devices or ask for their type: the answer is the same whatever
index the current device has."""

_OBSERVER = f"{pathlib.Path(__file__).parents[1]}{os.sep}"
"""Where the observer's own functions are: what the observer reads, the traced code does not see."""


def _callers() -> Iterator[types.FrameType]:
    """The frames that called `_get` or `_set`, without functions that only pass a value on."""
    frame: types.FrameType | None = sys._getframe(3)
    left = _FRAMES
    while frame is not None and left:
        if not observation.passes_on(frame.f_code):
            left -= 1
            if frame.f_code.co_name not in _PASSING_BY:
                yield frame
        frame = frame.f_back


def _reads_harmlessly(frames: list[types.FrameType], *, as_proxy: bool) -> bool:
    """Whether these callers use a device without its index.

    `as_proxy`: the method `as_proxy` reads the device, to put it into the graph.
    """
    if as_proxy:
        return any(frame.f_code.co_name == _HANDED_ON for frame in frames)
    name, variables = frames[0].f_code.co_name, frames[0].f_locals
    if name == "const_getattr":
        return bool(variables.get("name") == "type")
    if name == "tp_descr_get_impl":  # since torch 2.14
        return vars(variables["self"]).get("descriptor") is vars(torch.device)["type"]
    code = frames[0].f_code
    # This one writes the device into the caller frame.
    written = name == "__call__" and code.co_filename == _CODEGEN
    is_observer = code.co_filename.startswith(_OBSERVER)
    return written or is_observer or name in _READS_EQUALITY or _makes_device(frames[0])


_CODEGEN = vars(codegen.PyCodegen)["__init__"].__code__.co_filename


def _makes_device(frame: types.FrameType) -> bool:
    """Whether a frame is the one in which Dynamo evaluates `torch.device(...)`."""
    called = getattr(frame.f_locals.get("self"), "__dict__", {}).get("value")
    return frame.f_code.co_name == "call_function" and called is torch.device


def _of_device(frame: types.FrameType) -> bool:
    """Whether the call in the frame is `torch.device(d)` with a device `d`."""
    args, kwargs = frame.f_locals.get("args", ()), frame.f_locals.get("kwargs", {})
    given = [*args, *kwargs.values()]
    if len(given) != 1 or not given[0].is_python_constant():
        return False
    return type(given[0].as_python_constant()) is torch.device


def _note_read(recorder: Recorder) -> None:
    recorder.note(Question.DEVICE)
    as_proxy = sys._getframe(2).f_code.co_name == "as_proxy"
    frames = list(_callers())
    if not frames or not _reads_harmlessly(frames, as_proxy=as_proxy):
        where = frames[0].f_code.co_name if frames else "?"
        recorder.note(Question.INDEX, None, f"the traced code looks into a device ({where})")


def _note_made(recorder: Recorder, variable: Any) -> None:
    origin = vars(variable).get("source")
    recorder.note(Question.DEVICE, origin)
    if origin is not None:
        return
    for frame in _callers():
        if frame.f_code.co_name in ("method_attr_device", "clone"):
            return
        if _makes_device(frame):
            if not _of_device(frame):
                recorder.note(Question.INDEX, None, "the traced code makes a device of an index")
            return
    recorder.note(Question.INDEX, None, "the traced code has a device from elsewhere")


def _get(self: Any) -> Any:
    value = vars(self)["value"]
    if type(value) is torch.device:
        recorder = _watching(value)
        if recorder is not None:
            _note_read(recorder)
    return value


def _set(self: Any, value: Any) -> None:
    vars(self)["value"] = value
    if type(value) is torch.device:
        recorder = _watching(value)
        if recorder is not None:
            _note_made(recorder, self)


def noting_value(_: Any) -> property:
    """A hook: makes `ConstantVariable.value` a property that notes each device."""
    return property(_get, _set)


def _note_index(variable: Any) -> None:
    recorder = _watching(variable.device)
    if recorder is not None:
        recorder.note(Question.DEVICE)
        recorder.note(Question.INDEX, None, "the traced code calls get_device()")


def noting_index(get_device: Callable[..., Any]) -> Callable[..., Any]:
    def method_get_device(self: Any, *tx: Any) -> Any:  # torch 2.10 passes none
        _note_index(self)
        return get_device(self, *tx)

    return method_get_device


def noting_index_by_name(call_method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call_method)
    def call(self: Any, tx: Any, name: str, *rest: Any, **more: Any) -> Any:
        if name == "get_device":
            _note_index(self)
        return call_method(self, tx, name, *rest, **more)

    return call


def of_any_device(reconstruct: Callable[..., None]) -> Callable[..., None]:
    """A hook: makes the caller frame ask for the current stream of whatever device is current."""

    def reconstruct_current(self: Any, into: Any) -> None:
        any_device = type(self)(torch.device(self.device.type))
        reconstruct(self if observation.current() is None else any_device, into)

    return reconstruct_current
