"""Tells which values of a graph may share memory, and when that memory is read and written.

The graphs are not functionalised, so a pass that moves, merges or drops a read or a write must know
who else can see the memory. All passes ask this module.

Memory is divided into *places*: the memory that one call allocates is a place, and OUTSIDE is all
memory that existed before the graph ran. A value may live in several places. Two values without a
common place never share memory. The rules:

- Inputs and constants may overlap one another in any way, because guards tell which inputs are the
  same object but not which overlap. Only a functionalised graph (`distinct_inputs`) has inputs that
  don't overlap.
- Operators do what `effects` says. If two traced values share a fake storage, they share memory,
  whatever `effects` says about their operators.
- A pure view neither reads nor writes. Memory is touched when a call uses the view.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from torch.fx.node import map_arg

from npugx_cache.backend import lowering
from npugx_cache.backend.passes import effects, layout
from npugx_cache.backend.passes.ordering import Ordering
from npugx_cache.private import schemas

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import fx

OUTSIDE = 0
"""The place of all memory that existed before the graph ran."""

Places = frozenset[int]
_NOWHERE: Places = frozenset()


class Aliasing:
    """The answers for one graph. Positions are those of the nodes when the object was created."""

    def __init__(self, graph: fx.Graph, *, distinct_inputs: bool = False) -> None:
        nodes = list(graph.nodes)
        self.position = {node: index for index, node in enumerate(nodes)}
        self.roots: dict[int, fx.Node] = {}
        self._outside = {OUTSIDE}
        self._distinct = distinct_inputs
        self._places: dict[fx.Node, Places] = {}
        self._members: defaultdict[int, set[fx.Node]] = defaultdict(set)
        self._by_storage: defaultdict[int, set[int]] = defaultdict(set)
        self._elements: dict[tuple[fx.Node, Any], int] = {}
        self._touches: defaultdict[int, list[int]] = defaultdict(list)
        self._writes: defaultdict[int, list[int]] = defaultdict(list)
        self._returned: Places = _NOWHERE
        self._absolute: set[int] = set()
        self._segments: list[int] = []
        self._ordering = Ordering()
        for node in nodes:
            self._add(node)

    # --- questions

    def places(self, node: fx.Node) -> Places:
        return self._places[node]

    def own(self, node: fx.Node) -> int | None:
        """The place of a value that lives in one place, which the graph allocated; else None."""
        places = self._places[node]
        if len(places) != 1 or places & self._outside:
            return None
        return next(iter(places))

    def passed_twice(self, node: fx.Node, argument: fx.Node) -> bool:
        """Whether another argument of the call may share memory with `argument`."""
        arguments: list[Any] = []
        map_arg((node.args, node.kwargs), arguments.append)
        arguments.remove(argument)
        return any(self._places[argument] & self._places[other] for other in arguments)

    def touched(self, places: Places, after: int, before: int) -> bool:
        """Whether a call strictly between two positions reads or writes one of the places."""
        return any(_between(self._touches[place], after, before) for place in places)

    def written(self, places: Places, after: int, before: int) -> bool:
        return any(_between(self._writes[place], after, before) for place in places)

    def last_touch(self, places: Places) -> int:
        """The position of the last read or write; the end if the caller can see the memory."""
        if self.visible(places):
            return len(self.position)
        return max(
            (self._touches[place][-1] for place in places if self._touches[place]), default=-1
        )

    def visible(self, places: Places) -> bool:
        """Whether the caller can see the memory after the graph has run."""
        return bool(places & (self._outside | self._returned))

    def is_returned(self, places: Places) -> bool:
        return bool(places & self._returned)

    def one_stream(self, nodes: Iterable[fx.Node]) -> bool:
        """Whether all nodes are in one segment (see `one_segment`)."""
        return len({self._segments[self.position[node]] for node in nodes}) <= 1

    def one_segment(self, places: Places, node: fx.Node) -> bool:
        """Whether all calls that touch the places are in the same segment as `node`.

        A segment ends where a call switches streams, uses an event, or begins or ends a scope. In
        another segment, other streams may use the memory, which a rewrite can't see.
        """
        segment = self._segments[self.position[node]]
        return all(self._segments[at] == segment for at in self._known_touches(places))

    def ordered_before(self, places: Places, node: fx.Node) -> bool:
        """Whether `node` may write to these places of the graph, with respect to other streams.

        All earlier calls that touch the places must have ended by then. The places must also have
        been allocated on the stream of `node`, because users of the result know only that stream.
        """
        at = self.position[node]
        label = self._ordering.label(at)
        made = (self.position[self.roots[place]] for place in places)
        return all(self._ordering.label(each) == label for each in made) and all(
            self._ordering.before(each, at) for each in self._known_touches(places) if each < at
        )

    def _known_touches(self, places: Places) -> Iterator[int]:
        for place in places:
            yield from self._touches[place]
            if place in self.roots:
                yield self.position[self.roots[place]]

    def may_move(self, place: int) -> bool:
        """Whether no call depends on the position in its storage of a value in this place."""
        return place not in self._absolute

    def first_write(self, place: int, after: int) -> int | None:
        writes = self._writes[place]
        index = bisect_right(writes, after)
        return writes[index] if index < len(writes) else None

    def fills_its_memory(self, node: fx.Node) -> bool:
        """Whether a value covers all of the memory that the graph allocated for it.

        Only such a value may be returned: a caller must not get a tensor with more memory behind it
        than in eager.
        """
        place, value = self.own(node), layout.tensor(node)
        if place is None or value is None:
            return False
        whole = layout.tensor(self.roots[place])
        schema = schemas.schema_of(self.roots[place].target)
        copies_more = schema is not None and schema.name in effects.WHOLE_STORAGE_COPIES
        return whole is not None and not copies_more and layout.fills(value, whole)

    # --- changes

    def merge(self, gone: int, into: Places) -> None:
        """Note that a rewrite moved the values of place `gone` to the places `into`."""
        for node in self._members.pop(gone, set()):
            self._places[node] = (self._places[node] - {gone}) | into
            for place in into:
                self._members[place].add(node)
        for place in into:
            for record in (self._touches, self._writes):
                record[place] = sorted({*record[place], *record[gone]})
        if gone in self._returned:
            self._returned |= into

    def note_write(self, node: fx.Node, places: Places) -> None:
        """Note that the call `node` writes to these places after a rewrite."""
        for place in places:
            for record in (self._touches, self._writes):
                record[place] = sorted({*record[place], self.position[node]})

    # --- building

    def _add(self, node: fx.Node) -> None:
        at = self.position[node]
        previous = self._segments[-1] if self._segments else 0
        self._segments.append(previous + effects.switches_stream(node))
        self._ordering.add(node)
        if node.op == "output":
            self._returned = self._union(node.all_input_nodes)
            self._record(self._touches, self._returned, at)
            self._places[node] = _NOWHERE
            return
        done = effects.of(node)
        self._places[node] = self._places_of(node, done)
        for place in self._places[node]:
            self._members[place].add(node)
            for storage in lowering.storages(node.meta.get("val")):
                self._by_storage[storage].add(place)
        if not done.is_view:
            self._record(self._touches, self._union(node.all_input_nodes), at)
        self._record(self._writes, self._union(done.written), at)
        if effects.asks_for_position(node):
            self._absolute |= self._union(node.all_input_nodes)
        if done.unknown:
            for record in (self._touches, self._writes):
                self._record(record, frozenset(self._outside), at)

    def _record(self, record: dict[int, list[int]], places: Places, at: int) -> None:
        for place in places:
            if not record[place] or record[place][-1] != at:
                record[place].append(at)

    def _union(self, nodes: Iterable[fx.Node]) -> Places:
        return _NOWHERE.union(*(self._places[node] for node in nodes))

    def _places_of(self, node: fx.Node, done: effects.Effects) -> Places:
        if not effects.may_hold_tensors(node):
            return _NOWHERE
        storages = lowering.storages(node.meta.get("val"))
        shared = _NOWHERE.union(*(self._by_storage.get(s, ()) for s in storages))
        if node.op in ("placeholder", "get_attr"):
            return shared | {self._new(node, outside=True) if self._distinct else OUTSIDE}
        element = self._element(node)
        if element is not None:
            return frozenset({element})
        aliased = self._union(done.aliased) | shared
        if done.unknown:
            return aliased | self._outside
        return aliased or frozenset({self._new(node)})

    def _new(self, root: fx.Node, *, outside: bool = False) -> int:
        place = len(self.roots) + 1
        self.roots[place] = root
        if outside:
            self._outside.add(place)
        return place

    def _element(self, node: fx.Node) -> int | None:
        """The place of a getitem node, if its call allocates several results with own memory."""
        if node.target is not operator.getitem:
            return None
        source, index = node.args[0], node.args[1]
        own = self.own(source)  # type: ignore[arg-type]
        if own is None or self.roots[own] is not source or not isinstance(index, int):
            return None
        storages = lowering.storages(source.meta.get("val"))
        if not storages or len(storages) != len(set(storages)):
            return None
        if (source, index) not in self._elements:
            self._elements[source, index] = self._new(node)
        return self._elements[source, index]


def known(graph: fx.Graph, *, distinct_inputs: bool = False) -> Aliasing | None:
    """The aliasing of a graph; None if an operator moves an existing value to other memory."""
    if effects.moves_values(graph):
        return None
    return Aliasing(graph, distinct_inputs=distinct_inputs)


def _between(positions: list[int], after: int, before: int) -> bool:
    return bisect_right(positions, after) < bisect_left(positions, before)
