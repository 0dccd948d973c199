"""Devices among the constants of a trace: where each comes from, and what is made of it.

Dynamo folds `x.device` into a constant, index included. A graph that only hands such a device on
means "the device of x"; one that was made with a look at the index, or with an index that the code
names, means that index. So each place where Dynamo makes such a constant or looks into one is known
here to be harmless, or is noted.

Importing this module loads the compiler.
"""

from __future__ import annotations

import functools
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
    """The kind of device that is looked for, such as "npu"."""

    kind: str = ""


def begin(recorder: Recorder, unseen: str | None) -> None:
    """Note what a trace does with devices of the accelerator; nothing where there is none.

    `unseen`: why this torch does not tell all of it, if it does not.
    """
    kind = runtime.accelerator() or ""
    recorder.state(_Accelerator).kind = kind
    if not kind:
        return
    if unseen:
        recorder.note(Question.INDEX, None, unseen)
    if torch.accelerator.device_count() > 1:
        # Of factories on "the" device it remembers the results, and not which device was current.
        FakeTensorMode.cache_clear()


def _watching(value: object) -> Recorder | None:
    """Where to note what is done with a value, if that is a device of the accelerator."""
    recorder = observation.current()
    if recorder is None or type(value) is not torch.device or value.index is None:
        return None
    return recorder if value.type == recorder.state(_Accelerator).kind else None


_HANDED_ON = "proxy_args_kwargs"
"""Makes arguments of a call in the graph."""
_FRAMES = 12

_PASSING_BY = frozenset(
    {
        "as_python_constant",
        "as_proxy",
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
"""Names of functions that say nothing: whoever called them decides."""

_READS_EQUALITY = frozenset(
    {
        "compare_by_value",
        "python_constant_richcompare_impl",
        "is_python_equal",
        "iter_contains",
        "is_constant_match",
        "is_constant_none",
        "hash_impl",  # of a key; the order of a set is a condition of its own
        "python_type",
        "__repr__",
        "_of_device",
    }
)
"""Two devices are equal or not whatever their index is called, and each has but one type."""


def _callers() -> Iterator[types.FrameType]:
    """The frames above the property below, without those that pass a value on."""
    frame: types.FrameType | None = sys._getframe(3)
    left = _FRAMES
    while frame is not None and left:
        if not observation.passes_on(frame.f_code):
            left -= 1
            if frame.f_code.co_name not in _PASSING_BY:
                yield frame
        frame = frame.f_back


def _reads_harmlessly(frames: list[types.FrameType], *, as_proxy: bool) -> bool:
    if as_proxy:
        return any(frame.f_code.co_name == _HANDED_ON for frame in frames)
    name, variables = frames[0].f_code.co_name, frames[0].f_locals
    if name == "const_getattr":
        return bool(variables.get("name") == "type")
    code = frames[0].f_code
    written = name == "__call__" and code.co_filename == codegen.__file__  # into the caller frame
    return written or name in _READS_EQUALITY or _makes_device(frames[0])


def _makes_device(frame: types.FrameType) -> bool:
    """Whether it is the frame that folds `torch.device(...)`."""
    called = getattr(frame.f_locals.get("self"), "__dict__", {}).get("value")
    return frame.f_code.co_name == "call_function" and called is torch.device


def _of_device(frame: types.FrameType) -> bool:
    """Whether that call is given a device and nothing else."""
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
    return property(_get, _set)


def _note_index(variable: Any) -> None:
    recorder = _watching(variable.device)
    if recorder is not None:
        recorder.note(Question.DEVICE)
        recorder.note(Question.INDEX, None, "the traced code calls get_device()")


def noting_index(get_device: Callable[..., Any]) -> Callable[..., Any]:
    def method_get_device(self: Any, tx: Any) -> Any:
        _note_index(self)
        return get_device(self, tx)

    return method_get_device


def noting_index_by_name(call_method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call_method)
    def call(self: Any, tx: Any, name: str, *rest: Any, **more: Any) -> Any:
        if name == "get_device":
            _note_index(self)
        return call_method(self, tx, name, *rest, **more)

    return call


def of_any_device(reconstruct: Callable[..., None]) -> Callable[..., None]:
    """Every frame hands the current stream to its graph: of the device that is current then."""

    def reconstruct_current(self: Any, into: Any) -> None:
        any_device = type(self)(torch.device(self.device.type))
        reconstruct(self if observation.current() is None else any_device, into)

    return reconstruct_current
