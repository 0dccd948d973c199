"""A runner for programs that work on other streams beside the current one, or with events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npugx_cache.backend.capture.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import torch

    from npugx_cache.backend.capture import planned
    from npugx_cache.backend.capture.captured import CapturedGraph
    from npugx_cache.backend.capture.captures import Captures
    from npugx_cache.backend.capture.device import Device
    from npugx_cache.backend.capture.layout import Layout
    from npugx_cache.backend.streams import Streams


class SideStreamsRunner(Runner):
    """A graph is captured across all streams of a program and replayed on the current one."""

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
        del wanted
        return "which streams it uses is known at a call only"

    def _to_capture(self) -> Callable[..., Any]:
        return self._streams.capturing(self._program)

    def _state(self) -> Hashable:
        return self._device.state(), self._streams.pattern(self._device.state_of)
