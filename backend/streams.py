"""The streams and events of a program: symbolic labels in the program, live objects at a call.

A program switches streams with `streams::fork(from, to)` and names streams and events by small
numbers. 0 is the stream that is current when the program is called. What stands behind the others
is handed over by the caller frame at each call, which reads it from where the traced function did;
streams and events that the function makes itself are made once per program and thread.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache._compat.frame_shims import Made, handed_over
from npugx_cache.backend.program import STREAM_OPERATORS
from npugx_cache.portable import NotPortable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ENTRY = 0
"""The label of the stream that is current when a program is called."""


class Streams(threading.local):
    """What the labels of one program stand for in this thread.

    `hand_over` gives the objects of a call by label. Threads share none of what is made here: a
    wait for an event means its latest record, which must not be another call's.
    """

    def __init__(self, hand_over: Callable[[], Mapping[int, Any]] = handed_over) -> None:
        self._hand_over = hand_over
        self._made: dict[int, Any] = {}
        self._live: dict[int, Any] = {}

    def around(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """The program with its labels bound at each call, and the current stream put back."""

        def run(*inputs: Any) -> Any:
            outer, entry = self._live, _of_its_device(torch.accelerator.current_stream())
            given = self._hand_over()
            self._live = {label: self._alive(label, value) for label, value in given.items()}
            self._live[ENTRY] = entry
            try:
                return program(*inputs)
            finally:
                torch.accelerator.set_stream(entry)
                self._live = outer

        return run

    def _alive(self, label: int, value: Any) -> Any:
        if not isinstance(value, Made):
            return value
        if label not in self._made:
            self._made[label] = _of_its_device(value.make(*value.args, **value.kwargs))
        return self._made[label]

    def operator(self, name: str) -> Callable[..., None]:
        """The function behind an operator of the namespace `streams`."""
        if name not in STREAM_OPERATORS:
            raise NotPortable(f"streams::{name} is not known")
        function: Callable[..., None] = getattr(self, name)
        return function

    # --- operators, by the names and arguments they have in torch

    def fork(self, _: int, to: int) -> None:
        stream = self._live[to]
        if stream.device.type == self._live[ENTRY].device.type:  # streams of a CPU do nothing
            torch.accelerator.set_stream(stream)

    def record_event(self, event: int, stream: int) -> None:
        self._live[event].record(self._live[stream])

    def wait_event(self, event: int, stream: int) -> None:
        self._live[event].wait(self._live[stream])

    def wait_stream(self, waiting: int, awaited: int) -> None:
        self._live[waiting].wait_stream(self._live[awaited])

    def record_stream(self, tensor: torch.Tensor, stream: int) -> None:
        tensor.record_stream(self._live[stream])

    def synchronize_event(self, event: int) -> None:
        self._live[event].synchronize()

    def synchronize_stream(self, stream: int) -> None:
        self._live[stream].synchronize()

    def synchronize_device(self, kind: str, index: int) -> None:
        torch.accelerator.synchronize(torch.device(kind, index))


def _of_its_device(made: Any) -> Any:
    """A stream as its device's own class, which torch_npu's events need; anything else as it is."""
    if not isinstance(made, torch.Stream):
        return made
    cls = torch.get_device_module(made.device).Stream
    if isinstance(made, cls) or not issubclass(cls, torch.Stream):
        return made
    identity = {name: getattr(made, name) for name in ("stream_id", "device_index", "device_type")}
    return cls(**identity)
