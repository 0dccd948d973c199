"""Capture with torch.npu.NPUGraph."""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from npugx_cache.backend.capture import deadlock
from npugx_cache.backend.capture.npu_tasks import NpuUpdates
from npugx_cache.backend.capture.streamed import StreamedDevice
from npugx_cache.private import determinism

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from npugx_cache.backend.capture.tasks import Updates
    from npugx_cache.backend.options import Options

logger = logging.getLogger("npugx_cache")


class NpuDevice(StreamedDevice):
    """An NPU. The core limits of the stream and the level of determinism are baked into a capture.

    They are therefore the `state`, which is part of a graph's key.
    """

    def __init__(self, kind: str, index: int) -> None:
        api = vars(torch)["npu"]
        super().__init__(kind, index, api, api.NPUGraph)

    def state(self) -> Hashable:
        return self._limits(), determinism.level()

    def _limits(self) -> tuple[int, int]:
        return self.state_of(self._api.current_stream())

    def state_of(self, stream: Any) -> tuple[int, int]:
        limits = self._api.get_stream_limit(stream)
        return limits["cube_core_num"], limits["vector_core_num"]

    def updates(self) -> Updates:
        return NpuUpdates(self.index, self._api, self.state_of)

    def finish(self, graph: Any, options: Options) -> None:
        if options.super_kernel_optimize:
            graph.super_kernel_optimize(
                optimize_options=_plain(options.super_kernel_optimize_options),
                debug_options=_plain(options.super_kernel_debug_options),
            )
        if options.deadlock_check:
            self._check_for_deadlocks(graph)

    def _check_for_deadlocks(self, graph: Any) -> None:
        """Log possible deadlocks. If the graph's trace can't be read, only a warning is logged."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "graph.json"
                graph.debug_dump(str(path))
                rows = json.loads(path.read_text())
            cores = self._api.get_device_limit(self.index)["vector_core_num"]
            found = deadlock.conflicts(rows, cores)
        except Exception as error:  # noqa: BLE001 - the vendor's and the file system's
            logger.warning("deadlock_check: can't read the trace of the captured graph: %r", error)
            return
        for conflict in found:
            logger.warning("deadlock_check: this graph may deadlock: %s", conflict)
        if not found:
            logger.info("deadlock_check: none of %d tasks can deadlock", len(rows))

    @contextlib.contextmanager
    def in_state(self, stream: Any, state: tuple[int, ...]) -> Iterator[None]:
        before = self.state_of(stream)
        if before == state:
            yield
            return
        self._api.set_stream_limit(stream, *state)
        try:
            yield
        finally:
            self._api.set_stream_limit(stream, *before)

    @contextlib.contextmanager
    def capture_stream(self) -> Iterator[Any]:
        wanted = self._limits()
        with super().capture_stream() as stream, self.in_state(stream, wanted):
            yield stream


def _plain(settings: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if settings is None else dict(settings)


DEVICE = NpuDevice
