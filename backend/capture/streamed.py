"""The part of capture that CUDA and the NPU share: torch's interface of streams, pools, graphs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from npugx_cache.backend.capture.device import Captured, Device

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import torch

    from npugx_cache.backend.options import Options

_capture_streams: dict[tuple[str, int], Any] = {}
"""One stream for captures per device and process, because an NPU has few streams."""


class StreamedDevice(Device):
    """A device with torch's interface of streams and graphs.

    `api` is `torch.cuda` or `torch.npu`. `new_graph` creates an empty graph of that device.
    """

    error_mode = "global"
    """What other threads may do during a capture, unless the option `capture_error_mode` says."""

    def __init__(self, kind: str, index: int, api: Any, new_graph: Callable[[], Any]) -> None:
        super().__init__(kind, index)
        self._api, self._new_graph = api, new_graph

    def current(self) -> AbstractContextManager[object]:
        guard: AbstractContextManager[object] = self._api.device(self.index)
        return guard

    def is_capturing(self) -> bool:
        return bool(self._api.is_current_stream_capturing())

    def state(self) -> Hashable:
        return self.state_of(self._api.current_stream())

    def follow(self, stream: Any) -> Any:
        now = self._api.current_stream()
        if stream is not None and stream != now:
            now.wait_stream(stream)
        return now

    def new_pool(self) -> Any:
        return self._api.graph_pool_handle()

    def end(self, graph: Any) -> None:
        """End a capture that went well; for subclasses."""
        graph.capture_end()

    def abandon(self, graph: Any, pool: Any) -> None:
        """End a failed capture, even if the device has ended the capture already."""
        del pool
        for end in (graph.capture_end, graph.reset):
            with contextlib.suppress(Exception):
                end()

    def finish(self, graph: Any, options: Options) -> None:
        """Process a graph after its capture and before its first replay; for subclasses."""

    def capture(
        self,
        program: Callable[..., Any],
        inputs: Sequence[Any],
        *,
        written: Sequence[int],
        constants: Sequence[torch.Tensor],
        pool: Any,
        options: Options,
    ) -> Captured:
        del written, constants
        self.synchronize()
        # During a capture the allocator can't return cached memory to the device, so do it before.
        self._api.empty_cache()
        graph, mode = self._new_graph(), options.capture_error_mode or self.error_mode
        with self.capture_stream():
            # Read here, because what the stream needed at its first use is not the graph's.
            reserved = self._api.memory_reserved(self.index)
            try:
                graph.capture_begin(pool=pool, capture_error_mode=mode)
                returned = program(*inputs)
                self.end(graph)
            except BaseException:
                self.abandon(graph, pool)
                raise
        try:
            self.finish(graph, options)
        except BaseException:
            graph.reset()
            raise
        # Not below 0: another thread may have returned more memory than the capture took.
        taken = max(0, self._api.memory_reserved(self.index) - reserved)
        return Captured(graph, returned, taken)

    @contextlib.contextmanager
    def capture_stream(self) -> Iterator[Any]:
        """Make the stream for captures current, because the default stream can't be captured."""
        where = self.kind, self.index
        if where not in _capture_streams:
            _capture_streams[where] = self._api.Stream()
        with self._api.stream(_capture_streams[where]):
            yield _capture_streams[where]

    def synchronize(self) -> None:
        self._api.synchronize(self.index)
