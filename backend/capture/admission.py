"""Decides which shapes get a captured graph, if there are more shapes than the limit allows.

The least recently used graph goes first. If more shapes than the limit take turns, plain LRU would
capture at every call and never replay, and a capture costs far more than an uncaptured call.
Therefore a graph gives way only to a shape that has been called more often (the admission rule of
TinyLFU).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

G = TypeVar("G")

_CALLS_PER_SLOT = 10


class Graphs(Generic[G]):
    """At most `limit` graphs by key. Not thread-safe: its owner holds a lock."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._graphs: OrderedDict[Hashable, G] = OrderedDict()
        self._uses: Counter[Hashable] = Counter()
        self._counted = 0

    def __len__(self) -> int:
        return len(self._graphs)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._graphs

    def values(self) -> Iterator[G]:
        return iter(self._graphs.values())

    def uses(self, key: Hashable) -> int:
        """How often this key was called; all counts are halved from time to time."""
        return self._uses[key]

    def use(self, key: Hashable) -> G | None:
        """Count a call, and return its graph if there is one."""
        self._uses[key] += 1
        self._counted += 1
        if self._counted >= _CALLS_PER_SLOT * max(len(self._graphs), 8):
            self._age()
        graph = self._graphs.get(key)
        if graph is not None:
            self._graphs.move_to_end(key)
        return graph

    def room_for(self, key: Hashable) -> bool:
        """Whether a graph for this key may be added, after `make_room`."""
        if key in self._graphs or len(self._graphs) < self.limit:
            return True
        oldest = next(iter(self._graphs))
        return self._uses[key] > self._uses[oldest]

    def make_room(self, key: Hashable) -> list[G]:
        """Remove and return the graphs that `add` replaces: that of the same key, or the oldest."""
        taken = [self._graphs.pop(key)] if key in self._graphs else []
        while len(self._graphs) >= self.limit:
            taken.append(self._graphs.popitem(last=False)[1])
        return taken

    def add(self, key: Hashable, graph: G) -> None:
        self._graphs[key] = graph

    def remove(self, unwanted: Callable[[G], bool]) -> list[G]:
        """Remove and return every graph for which `unwanted` is true."""
        keys = [key for key, graph in self._graphs.items() if unwanted(graph)]
        return [self._graphs.pop(key) for key in keys]

    def _age(self) -> None:
        """Halve all counts, or a shape that was popular once would keep its graph for ever."""
        self._counted = 0
        kept = ((key, uses // 2) for key, uses in self._uses.items())
        self._uses = Counter({k: n for k, n in kept if n or k in self._graphs})
