"""The streams and events of a program: symbolic labels in the program, live objects at a call.

A program switches streams with `streams::fork(from, to)` and names streams and events by small
numbers. 0 is the stream that is current when the program is called. What stands behind the others
is handed over by the caller frame at each call, which reads it from where the traced function did;
streams and events that the function makes itself are made once per program and thread.
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


class Label(NamedTuple):
    """What a label stands for at a call, as data.

    kind: "stream", "event" or OTHER; first: the first label that stands for the same; state: that
    of a stream other than the current one.
    """

    kind: str
    label: int
    first: int
    state: tuple[int, ...] = ()


@dataclass(slots=True)
class Seen:
    """What a program did to events when it was captured, the same in every thread: labels."""

    awaited: set[int] = field(default_factory=set)
    """Events that it waits for before it records them, if it does at all."""
    recorded: set[int] = field(default_factory=set)


class Streams(threading.local):
    """What the labels of one program stand for in this thread.

    `hand_over` gives the objects of a call by label. Threads share none of what is made here: a
    wait for an event means its latest record, which must not be another call's.

    A captured graph runs on the stream it is replayed on, wherever its parts were captured. So the
    streams and events of its caller are left out of the capture: before a replay the current stream
    waits for them, and afterwards they wait for it. More is ordered than in eager, never less.
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
        """The program with its labels bound at each call, and the current stream put back."""

        def run(*inputs: Any) -> Any:
            if self._is_capturing:
                return program(*inputs)
            with contextlib.nullcontext() if self._is_called else self.call():
                entry = self._live[ENTRY]
                self._is_called = False  # what is called from inside is another call
                try:
                    return program(*inputs)
                finally:
                    torch.accelerator.set_stream(entry)

        return run

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Bind the labels for one call of the program, however it is run."""
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
        """The function behind an operator of the namespace `streams`."""
        if name not in STREAM_OPERATORS:
            raise NotPortable(f"streams::{name} is not known")
        function: Callable[..., None] = getattr(self, name)
        return function

    # --- captured graphs, for a call that is being made

    def labels(self, state_of: Callable[[Any], tuple[int, ...]]) -> tuple[Label, ...]:
        """Which labels stand for the same object, and the state of each stream, at this call."""
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
        """OTHER for what another process can't put something in the place of."""
        live, here = self._live[label], self._live[ENTRY].device
        if isinstance(live, torch.Stream):
            return "stream" if live.device == here else OTHER
        of = getattr(live, "device", None)  # of an event: none before it is recorded
        return "event" if of is None or of.type == here.type else OTHER

    @contextlib.contextmanager
    def stood_in(self, labels: Sequence[Label]) -> Iterator[list[tuple[Any, tuple[int, ...]]]]:
        """As `call`, for no call: new streams and events stand in for those of a later one.

        Gives the new streams with the states that they are to be in. Raises LookupError for labels
        that fit nothing.
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
        """The program as it is captured on the current stream, with stand-ins for its labels."""

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
        """For a capture: its stream for the current one, events of its own for the caller's."""
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
        """Inside, the captured program is replayed on the current stream."""
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
        if stream.device.type == self._live[ENTRY].device.type:  # streams of a CPU do nothing
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
    """A stream as its device's own class, which torch_npu's events need; anything else as it is."""
    if not isinstance(made, torch.Stream):
        return made
    cls = torch.get_device_module(made.device).Stream
    if isinstance(made, cls) or not issubclass(cls, torch.Stream):
        return made
    identity = {name: getattr(made, name) for name in ("stream_id", "device_index", "device_type")}
    return cls(**identity)
