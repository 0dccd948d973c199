"""Tells which calls of a graph have finished for sure, on any stream, when another call begins.

Calls on one stream run in order. A call on another stream comes first if a chain of events, or of
streams that wait for streams, leads from the one call to the other (vector clocks). Two labels may
stand for the same stream, which only adds order. Two labels may also stand for the same event,
which takes order away: then only the last record counts, whatever its label.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from npugx_cache.private import schemas

if TYPE_CHECKING:
    from torch import fx

_Clock = dict[int, int]
"""By stream label: the position after the last call on that stream that has finished."""

_ENTRY = 0


class Ordering:
    """Add the calls of a graph in order; then ask by their positions."""

    def __init__(self) -> None:
        self._label = _ENTRY
        self._clocks: defaultdict[int, _Clock] = defaultdict(dict)
        self._events: dict[int, _Clock] = {}
        self._labels: list[int] = []
        self._begun: list[_Clock] = []

    def add(self, node: fx.Node) -> None:
        schema = schemas.schema_of(node.target) if node.op == "call_function" else None
        if schema is not None and schema.namespace == "streams":
            self._note(schema.name.partition("::")[2], node.args)
        clock = self._clocks[self._label]
        self._labels.append(self._label)
        self._begun.append(dict(clock))
        clock[self._label] = len(self._labels)

    def label(self, position: int) -> int:
        return self._labels[position]

    def before(self, first: int, then: int) -> bool:
        """Whether the call at position `first` has finished when the later call `then` begins."""
        label = self._labels[first]
        return label == self._labels[then] or self._begun[then].get(label, 0) > first

    def _note(self, name: str, args: Any) -> None:
        if name == "fork":
            self._label = args[1]
        elif name == "wait_stream":
            _join(self._clocks[args[0]], self._clocks[args[1]])
        elif name == "wait_event":
            _join(self._clocks[args[1]], self._events.get(args[0], {}))
        elif name == "record_event":
            recorded = dict(self._clocks[args[1]])
            for label, known in self._events.items():  # another label may be the same event
                self._events[label] = {s: min(at, recorded.get(s, 0)) for s, at in known.items()}
            self._events[args[0]] = recorded


def _join(clock: _Clock, other: _Clock) -> None:
    for label, count in other.items():
        clock[label] = max(clock.get(label, 0), count)
