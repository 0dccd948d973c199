"""The captured graphs of one function: decides which calls are captured, and frees old graphs.

A function has one program per specialisation. All of them share one limit, so that 300 static
shapes don't become 300 graphs.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from npugx_cache.backend.capture.admission import Graphs
from npugx_cache.interpreter.forks import survive_forks

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from npugx_cache.backend.capture.captured import CapturedGraph
    from npugx_cache.backend.capture.keys import Key
    from npugx_cache.backend.options import Options
    from npugx_cache.backend.static_kernels.packages import Kept

logger = logging.getLogger("npugx_cache")

_ATTEMPTS = 3
_WASTED = 4


class Captures:
    """The captured graphs of one function, shared by its runners. Callers must hold `lock`.

    on_cpu: whether programs on a CPU are captured too. `owner` returns the object whose tensors the
    function may use. `changed` is called after each capture. `packages` keeps packages of static
    kernels for other processes; None if nothing does.
    """

    def __init__(self, title: str, options: Options, *, on_cpu: bool = False) -> None:
        self.title = title
        self.options = options
        self.on_cpu = on_cpu
        self.lock = threading.RLock()
        survive_forks(self, "lock")
        self.graphs: Graphs[CapturedGraph] = Graphs(options.capture_limit)
        self._failures: Counter[Hashable] = Counter()
        self._wasted: Counter[Hashable] = Counter()
        self._warned: set[str] = set()
        self.owner: Callable[[], object] = _nobody
        self.changed: Callable[[], None] = _nothing
        self.packages: Kept | None = None

    def admits(self, key: Key, warm_up_calls: int) -> bool:
        """Whether this call should capture a graph for its key, which has none."""
        if self._failures[key.shape] >= _ATTEMPTS:
            return False
        calls = self.graphs.uses(key)
        if calls <= warm_up_calls:
            return False
        if calls < 2 and self._wasted[key.shape] >= _WASTED:
            self._warn(
                "moving",
                "%s: parameters that its captured graph uses in place have another address at each "
                "call; calls with new addresses run uncaptured",
            )
            return False
        if self.graphs.room_for(key):
            return True
        self._warn(
            "limit",
            "%s: capture_limit=%d graphs are captured; a further shape runs uncaptured until it "
            "has been called more often than the least recently used one",
            self.options.capture_limit,
        )
        return False

    def bury(self, key: Key) -> Key | None:
        """Drop the graphs that use memory in place which has been freed.

        A dropped graph that was replayed at most once was captured in vain. If that has happened
        several times to graphs with the shape of `key`, return the key of one that is dropped now.
        """
        # A graph with the addresses of this call stays usable: live tensors are there again.
        dead = self.graphs.remove(lambda graph: graph.is_dead() and graph.key.places != key.places)
        unused = [graph.key for graph in dead if graph.replays <= 1]
        self._wasted.update(each.shape for each in unused)
        release(dead)
        if self._wasted[key.shape] < _WASTED:
            return None
        return next((each for each in unused if each.shape == key.shape), None)

    def forgive(self, key: Key) -> None:
        """Reset the count of graphs captured in vain for this shape, because the cause is gone."""
        del self._wasted[key.shape]

    def add(self, key: Key, graph: CapturedGraph) -> None:
        """Add a graph. It replaces the graph of the same key, or the least recently used one."""
        release(self.graphs.make_room(key))
        self.graphs.add(key, graph)
        self.changed()

    def refused(self, reason: str) -> None:
        """Note a program that can't be captured at all."""
        self._warn(f"refused {reason}", "%s: not captured, runs uncaptured: %s", reason)

    def failed(self, key: Key, error: Exception) -> None:
        """Note a capture that raised. It is tried again a few times, because the cause may pass."""
        self._failures[key.shape] += 1
        self._warn(f"failed {error!r}", "%s: not captured, runs uncaptured: %s", first_line(error))

    def without_kernels(self, reason: str) -> None:
        """Note that a program runs without static kernels."""
        self._warn(f"kernels {reason}", "%s: runs without static kernels: %s", reason)

    def drop(self, graph: CapturedGraph) -> None:
        release(self.graphs.remove(lambda other: other is graph))

    def close(self) -> None:
        release(self.graphs.remove(lambda _: True))

    def _warn(self, about: str, text: str, *args: Any) -> None:
        if about not in self._warned:
            self._warned.add(about)
            logger.warning(text, self.title, *args)


def _nobody() -> object:
    return None


def _nothing() -> None:
    pass


def release(graphs: Sequence[CapturedGraph]) -> None:
    """Free graphs, after waiting for the replays that are still running."""
    if not graphs:
        return
    from npugx_cache.backend.capture import device as capture_device

    with capture_device.capturing:
        for device in {graph.device for graph in graphs}:
            device.synchronize()
        for graph in graphs:
            graph.graph.reset()


def first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"
