"""Task groups of the NPU: give captured calls new arguments at a replay.

In the graph, each task first waits for an event that is recorded from outside the graph, and then
resets the event for the next replay. The graph is started first. Then, on another stream, the tasks
get their new arguments one after the other, and each task's event is recorded. Meanwhile the graph
already runs up to the first task that still waits.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from npugx_cache.backend import operators
from npugx_cache.interpreter.forks import survive_forks
from npugx_cache.private import determinism, npu

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

_updating = threading.Lock()
"""Held while tasks are updated, because all graphs share one stream for updates: an NPU has few."""
survive_forks(sys.modules[__name__], "_updating")

_streams: dict[int, Any] = {}


class Group(NamedTuple):
    """One task of a graph, and the settings under which it was captured.

    event: the event for which the graph waits before the task. limits: the core limits of the
    stream. level: the level of determinism.
    """

    handle: Any
    event: Any
    limits: tuple[int, int]
    level: int


class NpuUpdates:
    """See `tasks.Updates`. `limits` returns the core limits of a stream."""

    def __init__(self, index: int, api: Any, limits: Callable[[Any], tuple[int, int]]) -> None:
        self._index, self._api, self._limits = index, api, limits
        self._groups: list[Group] = []
        self._event: Any = None
        self._done = api.Event()

    def begin(self) -> None:
        stream = self._api.current_stream()
        self._event = self._api.ExternalEvent()
        self._event.wait(stream)
        self._event.reset(stream)
        self._api.graph_task_group_begin(stream)

    def end(self) -> None:
        stream = self._api.current_stream()
        handle = self._api.graph_task_group_end(stream)
        level = determinism.level()
        self._groups.append(Group(handle, self._event, self._limits(stream), level))

    def run(self, calls: Sequence[Callable[[], Any]]) -> None:
        replaying = self._api.current_stream()
        failed: list[BaseException] = []
        with _updating:
            stream = self._stream_beside(replaying)
            before = self._limits(stream)
            with self._api.stream(stream):
                stream.wait_event(self._done)
                for group, call in zip(self._groups, calls, strict=True):
                    try:
                        self._update(stream, group, call)
                    except BaseException as error:  # noqa: BLE001 - the graph waits; raise later
                        failed.append(error)
                    group.event.record(stream)
            self._api.set_stream_limit(stream, *before)
        self._done.record(replaying)  # the next updates wait for the end of this replay
        if failed:
            raise failed[0]

    def borrowed(self, tensor: torch.Tensor) -> torch.Tensor:
        return npu.unowned(tensor)

    def _update(self, stream: Any, group: Group, call: Callable[[], Any]) -> None:
        self._api.set_stream_limit(stream, *group.limits)
        with contextlib.ExitStack() as stack:
            if group.level != determinism.level():
                stack.callback(operators.determine(group.level).undo)
            self._api.graph_task_update_begin(stream, group.handle)
            stack.callback(self._api.graph_task_update_end, stream)
            call()

    def _stream_beside(self, replaying: Any) -> Any:
        """The stream for updates. It is never the stream of the replay, which waits for them."""
        if _streams.get(self._index) in (None, replaying):
            _streams[self._index] = self._api.Stream(priority=-1)
        return _streams[self._index]
