"""The captured graphs of one function: how many there may be, which ones, and what became of them.

A function has several programs when it has several specialisations. They share one limit: 300
static shapes must not become 300 graphs.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from npugx_cache.backend.capture import device as capture_device
from npugx_cache.backend.capture.admission import Graphs
from npugx_cache.forks import survive_forks

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
    """Shared by the runners of one function. `lock` is held for whatever is done with it.

    on_cpu: whether programs on a CPU are captured too. `owner` returns the object whose tensors the
    function may use; `changed` is called after each capture; `packages` is where packages of static
    kernels are kept for other processes, if they are.
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
        """Whether a graph should be captured for a key that has none, at this call."""
        if self._failures[key.shape] >= _ATTEMPTS:
            return False
        calls = self.graphs.uses(key)
        if calls <= warm_up_calls:
            return False
        if calls < 2 and self._wasted[key.shape] >= _WASTED:
            self._warn(
                "moving",
                "%s: parameters that its captured graph uses in place are somewhere else at each "
                "call; such calls run uncaptured",
            )
            return False
        if self.graphs.room_for(key):
            return True
        self._warn(
            "limit",
            "%s: capture_limit=%d graphs are captured; further shapes run uncaptured unless they "
            "are called more often than those",
            self.options.capture_limit,
        )
        return False

    def bury(self, key: Key) -> Key | None:
        """Drop the graphs whose memory has been freed: no call can have their addresses again.

        A graph that was never replayed for a second call was captured in vain. If that has happened
        several times to graphs of the shape of `key`, return the key of one that is dropped now.
        """
        # The addresses of this call belong to live tensors, whatever was there before.
        dead = self.graphs.remove(lambda graph: graph.is_dead() and graph.key.places != key.places)
        unused = [graph.key for graph in dead if graph.replays <= 1]
        self._wasted.update(each.shape for each in unused)
        release(dead)
        if self._wasted[key.shape] < _WASTED:
            return None
        return next((each for each in unused if each.shape == key.shape), None)

    def forgive(self, key: Key) -> None:
        """Reset the count of graphs of a shape that were captured in vain, as the cause is gone."""
        del self._wasted[key.shape]

    def add(self, key: Key, graph: CapturedGraph) -> None:
        """Add a graph in the place of one of the same key, or of the least recently used one."""
        release(self.graphs.make_room(key))
        self.graphs.add(key, graph)
        self.changed()

    def refused(self, reason: str) -> None:
        """Note a program that can't be captured at all."""
        self._warn(f"refused {reason}", "%s: not captured, runs uncaptured: %s", reason)

    def failed(self, key: Key, error: Exception) -> None:
        """Note a capture that raised. It is tried again a few times, because the cause may pass."""
        self._failures[key.shape] += 1
        self._warn(f"failed {error!r}", "%s: not captured, runs uncaptured: %s", _first_line(error))

    def without_kernels(self, reason: str) -> None:
        """Note that a program has no static kernels, which it does not need to run."""
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
    """Free graphs, after what they are running is done."""
    if not graphs:
        return
    with capture_device.capturing:
        for device in {graph.device for graph in graphs}:
            device.synchronize()
        for graph in graphs:
            graph.graph.reset()


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"
