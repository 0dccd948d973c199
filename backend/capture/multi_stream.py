"""The runner for programs that use events or several streams."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from npugx_cache.backend.capture.runner import Runner
from npugx_cache.backend.streams import OTHER, Label

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import torch

    from npugx_cache.backend.capture import planned
    from npugx_cache.backend.capture.captured import CapturedGraph
    from npugx_cache.backend.capture.captures import Captures
    from npugx_cache.backend.capture.device import Device
    from npugx_cache.backend.capture.keys import Key
    from npugx_cache.backend.capture.layout import Layout
    from npugx_cache.backend.streams import Streams


class SideStreamsRunner(Runner):
    """Captures a graph across all streams of a program, and replays it on the current stream."""

    def __init__(
        self,
        program: Callable[..., Any],
        layout: Layout,
        constants: Sequence[torch.Tensor],
        captures: Captures,
        device: Device,
        streams: Streams,
    ) -> None:
        super().__init__(program, layout, constants, captures, device)
        self._streams = streams

    def __call__(self, *inputs: Any) -> Any:
        with self._streams.call():
            return super().__call__(*inputs)

    def _replay(self, graph: CapturedGraph, inputs: Sequence[Any]) -> Any:
        with self._streams.replayed():
            return super()._replay(graph, inputs)

    def prepare(self, wanted: planned.Planned) -> str:
        """As `Runner.prepare`, with new streams and events.

        Any streams and events will do, because a graph keeps none of those of its capture.
        """
        labels = [Label(*each) for each in wanted.labels]
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._device.current())
                sides = stack.enter_context(self._streams.stood_in(labels))
                for stream, state in sides:
                    stack.enter_context(self._device.in_state(stream, state))
            except (LookupError, TypeError, RuntimeError) as error:
                return f"its streams can't be made: {error}"
            if self._labels() != tuple(labels):
                return "its streams and events can't be told apart here"
            return super().prepare(wanted)

    def _plan(self, key: Key, inputs: Sequence[Any]) -> planned.Planned:
        plan, labels = super()._plan(key, inputs), self._labels()
        if any(each.kind == OTHER for each in labels):
            return plan._replace(obstacle=plan.obstacle or "it uses streams of another device")
        return plan._replace(labels=tuple(tuple(each) for each in labels))

    def _labels(self) -> tuple[Label, ...]:
        return self._streams.labels(self._device.state_of)

    def _to_capture(self) -> Callable[..., Any]:
        return self._streams.capturing(self._program)

    def _state(self) -> Hashable:
        return self._device.state(), self._labels()
