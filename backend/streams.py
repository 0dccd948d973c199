"""Binds the stream and event labels of a program to live streams and events at each call.

A program names streams and events by small numbers, its *labels*, and switches streams with
`streams::fork(from, to)`. Label 0 is the stream that is current when the program is called. At each
call, the caller frame hands over the objects for the other labels; it reads them from the same
places as the traced function. Streams and events that the function creates itself are created once
per program and thread.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npugx_cache.backend.frame_shims import Made, handed_over
from npugx_cache.backend.program import STREAM_OPERATORS
from npugx_cache.portable import NotPortable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ENTRY = 0
"""The label of the stream that is current when a program is called."""

OTHER = "other"
"""The kind of a label whose stream or event belongs to another device."""


class Label(NamedTuple):
    """What a label stands for at a call, as data.

    kind: "stream", "event" or OTHER.
    first: the smallest label that stands for the same object.
    state: `Device.state_of` the stream, if it is not the current stream; else ().
    """

    kind: str
    label: int
    first: int
    state: tuple[int, ...] = ()


@dataclass(slots=True)
class Seen:
    """Labels of the events that a captured program uses. All threads share this object."""

    awaited: set[int] = field(default_factory=set)
    """Events that the program waits for without having recorded them before."""
    recorded: set[int] = field(default_factory=set)


class Streams(threading.local):
    """What the labels of one program stand for in this thread.

    `hand_over` gives the objects of a call by label. Threads share no stream or event that is
    created here, because a wait for an event means its latest record, and that record must not
    come from a call in another thread.

    A captured graph runs on the stream on which it is replayed, whatever streams its parts were
    captured on. The streams and events of the caller are therefore left out of the capture: before
    a replay, the current stream waits for them; after the replay, they wait for the current stream.
    This orders at least everything that eager orders.
    """

    def __init__(
        self, seen: Seen, hand_over: Callable[[], Mapping[int, Any]] = handed_over
    ) -> None:
        self._hand_over = hand_over
        self._seen = seen
        self._recorded: set[int] = set()
        self._made: dict[int, Any] = {}
        self._live: dict[int, Any] = {}
        self._is_called = self._is_capturing = False

    def around(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a program: bind its labels at each call, and restore the current stream after it."""

        def run(*inputs: Any) -> Any:
            if self._is_capturing:
                return program(*inputs)
            with contextlib.nullcontext() if self._is_called else self.call():
                entry = self._live[ENTRY]
                self._is_called = False  # a call from inside the program binds its own labels
                try:
                    return program(*inputs)
                finally:
                    torch.accelerator.set_stream(entry)

        return run

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Bind the labels for one call, which may run the program or replay its capture."""
        given = self._hand_over()
        with self._bound({label: self._alive(label, value) for label, value in given.items()}):
            yield

    @contextlib.contextmanager
    def _bound(self, live: dict[int, Any]) -> Iterator[None]:
        outer = self._live, self._is_called
        self._live = live
        self._live[ENTRY] = _of_its_device(torch.accelerator.current_stream())
        self._is_called = True
        try:
            yield
        finally:
            self._live, self._is_called = outer

    def _alive(self, label: int, value: Any) -> Any:
        if not isinstance(value, Made):
            return _of_its_device(value)
        if label not in self._made:
            self._made[label] = _of_its_device(value.make(*value.args, **value.kwargs))
        return self._made[label]

    def operator(self, name: str) -> Callable[..., None]:
        """The method for an operator of the namespace `streams`; raises NotPortable if unknown."""
        if name not in STREAM_OPERATORS:
            raise NotPortable(f"streams::{name} is not known")
        function: Callable[..., None] = getattr(self, name)
        return function

    # --- captured graphs; all but `stood_in` must be used inside `call`

    def labels(self, state_of: Callable[[Any], tuple[int, ...]]) -> tuple[Label, ...]:
        """What each label stands for at this call. `state_of` gives the state of a stream."""
        sides = self._sides()
        return tuple(
            Label(
                self._kind(label),
                label,
                self._first(label),
                state_of(self._live[label]) if label in sides else (),
            )
            for label in sorted(self._live)
        )

    def _kind(self, label: int) -> str:
        """The kind of a label; OTHER where `stood_in` could not create a stand-in."""
        live, here = self._live[label], self._live[ENTRY].device
        if isinstance(live, torch.Stream):
            return "stream" if live.device == here else OTHER
        of = getattr(live, "device", None)  # an event has no device before its first record
        return "event" if of is None or of.type == here.type else OTHER

    @contextlib.contextmanager
    def stood_in(self, labels: Sequence[Label]) -> Iterator[list[tuple[Any, tuple[int, ...]]]]:
        """Bind the labels to new streams and events, in order to capture ahead of the first call.

        Yields the new streams, each with the state that the caller has to put it in. Raises
        LookupError if a label is said to stand for the same object as a label that is missing.
        """
        live: dict[int, Any] = {}
        states: list[tuple[Any, tuple[int, ...]]] = []
        with self._bound(live):
            device = live[ENTRY].device
            for kind, label, first, state in labels:
                if first != label:
                    live[label] = live[first]
                elif kind == "event":
                    live[label] = torch.Event(device=device)
                elif label != ENTRY:
                    live[label] = _of_its_device(torch.Stream(device=device))
                    states.append((live[label], state))
            yield states

    def capturing(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a program for capture on the current stream, with stand-ins for its labels.

        The capture starts with all streams of the program waiting for the current stream, and ends
        with the current stream waiting for all of them, because a device captures only the work on
        streams that are joined in this way.
        """

        def run(*inputs: Any) -> Any:
            called, stream = self._live, _of_its_device(torch.accelerator.current_stream())
            sides = [called[label] for label in self._sides()]
            stand_ins = self._stand_ins(stream)
            for side in sides:
                side.wait_stream(stream)
            self._live, self._is_capturing, self._recorded = stand_ins, True, set()
            try:
                returned = program(*inputs)
                for side in sides:
                    stream.wait_stream(side)
            finally:
                torch.accelerator.set_stream(stream)
                self._live, self._is_capturing = called, False
            return returned

        return run

    def _stand_ins(self, stream: Any) -> dict[int, Any]:
        """The objects for the labels in a capture: `stream` for label 0, new events for events."""
        stand_ins: dict[int, Any] = {}
        for label in sorted(self._live):
            first = self._first(label)
            if label == ENTRY:
                stand_ins[label] = stream
            elif first != label:
                stand_ins[label] = stand_ins[first]
            else:
                live = self._live[label]
                stand_ins[label] = live if isinstance(live, torch.Stream) else type(live)()
        return stand_ins

    @contextlib.contextmanager
    def replayed(self) -> Iterator[None]:
        """Surround a replay on the current stream with the waits and records it leaves out."""
        entry = self._live[ENTRY]
        for label in self._sides():
            entry.wait_stream(self._live[label])
        for label in sorted(self._seen.awaited):
            self._live[label].wait(entry)
        yield
        for label in self._sides():
            self._live[label].wait_stream(entry)
        for label in sorted(self._seen.recorded):
            self._live[label].record(entry)

    def _sides(self) -> list[int]:
        """One label of each stream other than the current one."""
        return [
            label
            for label in sorted(self._live)
            if label != ENTRY and self._is_stream(label) and self._first(label) == label
        ]

    def _first(self, label: int) -> int:
        """The first label that stands for the same object."""
        return next(other for other in sorted(self._live) if self._same(other, label))

    def _is_stream(self, label: int) -> bool:
        """Whether a label stands for a stream of the device."""
        live, entry = self._live[label], self._live[ENTRY]
        return isinstance(live, torch.Stream) and live.device.type == entry.device.type

    def _same(self, first: int, second: int) -> bool:
        one, other = self._live[first], self._live[second]
        if isinstance(one, torch.Stream) and isinstance(other, torch.Stream):
            return one.device == other.device and one.stream_id == other.stream_id
        return one is other

    # --- operators, by the names and arguments they have in torch

    def fork(self, _: int, to: int) -> None:
        stream = self._live[to]
        if stream.device.type == self._live[ENTRY].device.type:  # a stream of the CPU does nothing
            torch.accelerator.set_stream(stream)

    def record_event(self, event: int, stream: int) -> None:
        if self._is_capturing:
            self._seen.recorded.add(event)
            self._recorded.add(id(self._live[event]))
        self._live[event].record(self._live[stream])

    def wait_event(self, event: int, stream: int) -> None:
        if self._is_capturing and id(self._live[event]) not in self._recorded:
            self._seen.awaited.add(event)
        else:
            self._live[event].wait(self._live[stream])

    def wait_stream(self, waiting: int, awaited: int) -> None:
        self._live[waiting].wait_stream(self._live[awaited])

    def record_stream(self, tensor: torch.Tensor, stream: int) -> None:
        if not self._is_capturing:  # the memory belongs to the graph, and stays
            tensor.record_stream(self._live[stream])

    def synchronize_event(self, event: int) -> None:
        self._live[event].synchronize()

    def synchronize_stream(self, stream: int) -> None:
        self._live[stream].synchronize()

    def synchronize_device(self, kind: str, index: int) -> None:
        torch.accelerator.synchronize(torch.device(kind, index))


def _of_its_device(made: Any) -> Any:
    """Convert a stream to its device's own class, because torch_npu's events need that class.

    Any other object is returned unchanged.
    """
    if not isinstance(made, torch.Stream):
        return made
    cls = torch.get_device_module(made.device).Stream
    if isinstance(made, cls) or not issubclass(cls, torch.Stream):
        return made
    identity = {name: getattr(made, name) for name in ("stream_id", "device_index", "device_type")}
    return cls(**identity)
