"""Which values of a graph may share memory, and when that memory is read and written.

The graphs are not functionalised, so every pass that moves, merges or drops a read or a write must
know who else can see the memory. This is the one place where that is decided.

Memory is divided into *places*: what one call allocates, and OUTSIDE, which is everything that was
there before the graph ran. A value may live in several places; two values that have none in
common never share memory. What the answers rest on:

- Inputs may overlap one another in any way, and constants too: guards tell which inputs are the
  same object, not which overlap. Only a functionalised graph (`distinct_inputs`) promises more.
- Operators do what `effects` says. Traced values that share a fake storage share memory whatever
  their operators say.
- A pure view neither reads nor writes: memory is touched when a view of it is used.
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

Places = frozenset[int]
_NOWHERE: Places = frozenset()


class Aliasing:
    """The answers for one graph, as it was when this was made."""

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
        """The place of a value that lives in memory the graph allocated, and nowhere else."""
        places = self._places[node]
        if len(places) != 1 or places & self._outside:
            return None
        return next(iter(places))

    def passed_twice(self, node: fx.Node, argument: fx.Node) -> bool:
        """Whether a call gets the memory of one of its arguments through another one too."""
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
        """The position of the last call that reads or writes; the caller reads after the end."""
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
        """Whether calls belong to one stream and one scope, with no event between them."""
        return len({self._segments[self.position[node]] for node in nodes}) <= 1

    def one_segment(self, places: Places, node: fx.Node) -> bool:
        """Whether all calls that touch the places are together with `node`.

        What others do to memory from outside, between two events, a rewrite can't see.
        """
        segment = self._segments[self.position[node]]
        return all(self._segments[at] == segment for at in self._known_touches(places))

    def ordered_before(self, places: Places, node: fx.Node) -> bool:
        """Whether `node` may write to the graph's own memory as far as other streams go.

        All that touches it must be over by then, and the memory be from the allocator's pool for
        the stream of `node`: whoever gets the result knows of no other.
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
        """Whether no call asks where in its storage a value lies: for inputs nobody knows."""
        return place not in self._absolute

    def first_write(self, place: int, after: int) -> int | None:
        writes = self._writes[place]
        index = bisect_right(writes, after)
        return writes[index] if index < len(writes) else None

    def fills_its_memory(self, node: fx.Node) -> bool:
        """Whether a value is all of what the graph allocated for it: returned, it hides nothing."""
        place, value = self.own(node), layout.tensor(node)
        if place is None or value is None:
            return False
        whole = layout.tensor(self.roots[place])
        schema = schemas.schema_of(self.roots[place].target)
        copies_more = schema is not None and schema.name in effects.WHOLE_STORAGE_COPIES
        return whole is not None and not copies_more and layout.fills(value, whole)

    # --- changes

    def merge(self, gone: int, into: Places) -> None:
        """Note that a rewrite put what was in one place into others."""
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
        """Note that a rewrite made a call write to places."""
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
        """The place of one result of a call that allocates several; each has its own."""
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
    """The aliasing of a graph; None if an operator changes what memory an existing value is in."""
    if effects.moves_values(graph):
        return None
    return Aliasing(graph, distinct_inputs=distinct_inputs)


def _between(positions: list[int], after: int, before: int) -> bool:
    return bisect_right(positions, after) < bisect_left(positions, before)
