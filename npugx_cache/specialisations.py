"""The graphs of one function that are bound in this process."""

from __future__ import annotations

import itertools
import operator
import threading
from typing import TYPE_CHECKING

from npugx_cache.interpreter.forks import survive_forks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npugx_cache.conditions.argument_facts import Index
    from npugx_cache.conditions.evaluate import Scope
    from npugx_cache.entry.restore import Specialisation


class _Bound:
    """A graph, and the turn at which it was last used."""

    __slots__ = ("graph", "used")

    def __init__(self, graph: Specialisation, used: int) -> None:
        self.graph, self.used = graph, used


_TURN = operator.attrgetter("used")


class Specialisations:
    """The graphs, newest hit first. Safe to use from several threads; `find` waits for no lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._latest: Specialisation | None = None
        self._previous: Specialisation | None = None
        """The graphs that come first and second, because two shapes often take turns."""
        self._known: dict[int, _Bound] = {}
        """By the identity of the graph."""
        self._index: Index[_Bound] | None = None
        """None as long as there was at most one graph."""
        self._turns = itertools.count()
        survive_forks(self, "_lock")

    def find(self, scope: Scope) -> Specialisation | None:
        """The graph that accepts a call, or None; that graph comes first from then on."""
        latest, previous = self._latest, self._previous
        if latest is not None and latest.holds_quickly(scope):
            return latest
        if previous is not None and previous.holds_quickly(scope):
            found: Specialisation | None = previous
        else:
            found = self._accepting(scope, latest, previous)
        # Does not wait for the lock, because the order only saves time and decides nothing.
        if found is not None and self._lock.acquire(blocking=False):
            try:
                self._put_first(found)
            finally:
                self._lock.release()
        return found

    def _accepting(
        self, scope: Scope, latest: Specialisation | None, previous: Specialisation | None
    ) -> Specialisation | None:
        """The graph that accepts a call; the two that come first do not accept quickly."""
        index = self._index
        found = list(self._known.values()) if index is None else index.select(scope.frame_locals)
        found.sort(key=_TURN, reverse=True)
        for each in found:
            graph = each.graph
            if graph is not latest and graph is not previous and graph.holds_quickly(scope):
                return graph
        # Full checks come last: one takes as long as many quick checks, and two shapes may take
        # turns. Something has changed: no graph, asked or not, may keep what is in no model by now.
        for each in list(self._known.values()):
            each.graph.conditions.let_go()
        for each in found:
            if each.graph.holds(scope):
                return each.graph
        return None

    def _put_first(self, graph: Specialisation) -> None:
        bound = self._known.get(id(graph))
        if bound is None:  # removed meanwhile
            return
        bound.used = next(self._turns)
        if graph is not self._latest:
            self._latest, self._previous = graph, self._latest

    def add(self, made: Iterable[Specialisation]) -> None:
        """Add graphs, which come before all others, in the order in which they are given."""
        with self._lock:
            new = [each for each in made if id(each) not in self._known]
            for graph in reversed(new):
                bound = self._known[id(graph)] = _Bound(graph, 0)
                if self._index is not None:
                    self._index.add(bound, graph.conditions.pinned_facts())
                self._put_first(graph)
            if self._index is None and len(self._known) > 1:
                self._index = self._build_index()

    def _build_index(self) -> Index[_Bound]:
        from npugx_cache.conditions.argument_facts import Index  # one graph needs none

        index: Index[_Bound] = Index()
        for bound in self._known.values():
            index.add(bound, bound.graph.conditions.pinned_facts())
        return index

    def remove(self, failed: Specialisation) -> None:
        with self._lock:
            bound = self._known.pop(id(failed), None)
            if bound is not None:
                if self._index is not None:
                    self._index.remove(bound, failed.conditions.pinned_facts())
                self._latest, self._previous, *_ = (*self, None, None)

    def __iter__(self) -> Iterator[Specialisation]:
        known = sorted(list(self._known.values()), key=_TURN, reverse=True)  # noqa: C414 - in one go
        return (each.graph for each in known)

    def __len__(self) -> int:
        return len(self._known)
