"""What CUDA and the NPU have in common: streams, pools, and graphs captured on a stream."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from npugx_cache.backend.capture.device import Captured

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import torch

    from npugx_cache.backend.options import Options

_capture_streams: dict[tuple[str, int], Any] = {}
"""One per device for the whole process: an NPU has few streams."""


class StreamedDevice:
    """A device under torch's stream and graph interface. `api` is `torch.cuda` or `torch.npu`."""

    warm_up_calls = 0

    def __init__(self, kind: str, index: int, api: Any) -> None:
        self.kind, self.index, self._api = kind, index, api

    def current(self) -> AbstractContextManager[object]:
        guard: AbstractContextManager[object] = self._api.device(self.index)
        return guard

    def is_capturing(self) -> bool:
        return bool(self._api.is_current_stream_capturing())

    def state(self) -> Hashable:
        return None

    def follow(self, stream: Any) -> Any:
        now = self._api.current_stream()
        if stream is not None and stream != now:
            now.wait_stream(stream)
        return now

    def new_pool(self) -> Any:
        return self._api.graph_pool_handle()

    def new_graph(self) -> Any:
        raise NotImplementedError

    def finish(self, graph: Any, options: Options) -> None:
        """What is done with a graph after its capture, before its first replay."""

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
        reserved = self._api.memory_reserved(self.index)
        graph = self.new_graph()
        with self.capture_stream():
            graph.capture_begin(pool=pool, capture_error_mode=options.capture_error_mode)
            try:
                returned = program(*inputs)
            except BaseException:
                # Ends the capture as well when the device has called it off already.
                for end in (graph.capture_end, graph.reset):
                    with contextlib.suppress(Exception):
                        end()
                raise
            graph.capture_end()
        try:
            self.finish(graph, options)
        except BaseException:
            graph.reset()
            raise
        return Captured(graph, returned, self._api.memory_reserved(self.index) - reserved)

    @contextlib.contextmanager
    def capture_stream(self) -> Iterator[Any]:
        """Make the stream for captures the current one; the default stream can't be captured."""
        where = self.kind, self.index
        if where not in _capture_streams:
            _capture_streams[where] = self._api.Stream()
        with self._api.stream(_capture_streams[where]):
            yield _capture_streams[where]

    def synchronize(self) -> None:
        self._api.synchronize(self.index)
