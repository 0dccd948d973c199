"""The NPU: torch.npu.NPUGraph."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend.capture.streamed import StreamedDevice

if TYPE_CHECKING:
    from collections.abc import Iterator


class NpuDevice(StreamedDevice):
    """A captured graph keeps the core limits of the stream that it was captured on."""

    def __init__(self, kind: str, index: int) -> None:
        super().__init__(kind, index, vars(torch)["npu"])

    def state(self) -> tuple[int, int]:
        return self._limits(self._api.current_stream())

    def new_graph(self) -> Any:
        return self._api.NPUGraph()

    @contextlib.contextmanager
    def capture_stream(self) -> Iterator[Any]:
        wanted = self.state()
        with super().capture_stream() as stream:
            before = self._limits(stream)
            if before == wanted:
                yield stream
                return
            self._api.set_stream_limit(stream, *wanted)
            try:
                yield stream
            finally:
                self._api.set_stream_limit(stream, *before)

    def _limits(self, stream: Any) -> tuple[int, int]:
        limits = self._api.get_stream_limit(stream)
        return limits["cube_core_num"], limits["vector_core_num"]


DEVICE = NpuDevice
