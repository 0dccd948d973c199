"""The graph of an entry as nodes and edges, to be drawn. A repeated layer is a node around others.

Weights and constants are no nodes, because most of them have one use: the node that takes them
names them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.backend.program import HIGHER_ORDER, values_in
from npugx_cache.backend.repeats import Loop
from npugx_cache.entry.view import graph_text, summary
from npugx_cache.entry.view.numbered import template

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npugx_cache.backend.program import Call, Operator, Program
    from npugx_cache.backend.repeats import Folded
    from npugx_cache.entry.view.given import Input

_NAMED = 3
INPUT, LAYER, RESULTS = "input", "layer", "results"


class Node(NamedTuple):
    """One box. Its id is its place among the nodes, and `parent` the layer that it lies in.

    `kind` is INPUT, LAYER, RESULTS or the kind of an operator; `copies` is 1 but for a layer.
    `about` has what people may ask of the box, as (name, value).
    """

    title: str
    kind: str
    parent: int | None
    copies: int
    about: tuple[tuple[str, str], ...]


class Edge(NamedTuple):
    """A value goes from one box to another. `again`: to the same box of the next copy of a layer.

    No end of an edge is a layer.
    """

    source: int
    target: int
    again: bool


class Drawing(NamedTuple):
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


class _Value(NamedTuple):
    """Where a value comes from: boxes, values of the copy before, and a name if it has no box."""

    nodes: tuple[int, ...] = ()
    before: tuple[tuple[int, int], ...] = ()
    name: str = ""


def drawing(program: Program, inputs: Sequence[Input]) -> Drawing:
    return _Drawer(program).draw_graph(inputs)


class _Drawer:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._nodes: list[Node] = []
        self._edges: dict[Edge, None] = {}
        self._waiting: list[tuple[tuple[int, int], int]] = []
        self._of_layers: dict[int, list[_Value]] = {}

    def draw_graph(self, inputs: Sequence[Input]) -> Drawing:
        used = set(self._used_values())
        values = [self._input(each, drawn=at in used) for at, each in enumerate(inputs)]
        values += [_Value(name=each.name) for each in self._program.constants]
        modules = graph_text.modules(self._program)
        values += self._function(graph_text.fold_repeats(self._program), values, modules, None, 0)
        results = tuple(dict.fromkeys(values_in(self._program.outputs)))
        self._connect([values[at] for at in results], self._add("results", RESULTS, None, []))
        for (layer, call), target in self._waiting:
            for source in self._of_layers[layer][call].nodes:
                self._edges[Edge(source, target, again=True)] = None
        return Drawing(tuple(self._nodes), tuple(self._edges))

    def _used_values(self) -> Iterator[int]:
        """The values that the graph itself uses."""
        for call in self._program.calls:
            yield from call.values()
        yield from values_in(self._program.outputs)

    def _input(self, given: Input, *, drawn: bool) -> _Value:
        if given.held or not drawn:
            return _Value(name=given.path)
        about = [("is", given.path), ("gives", given.words)]
        return _Value((self._add(given.path, INPUT, None, about),))

    def _add(
        self,
        title: str,
        kind: str,
        parent: int | None,
        about: Sequence[tuple[str, str]],
        copies: int = 1,
    ) -> int:
        shown = tuple((name, value) for name, value in about if value)
        self._nodes.append(Node(title, kind, parent, copies, shown))
        return len(self._nodes) - 1

    def _connect(self, values: Sequence[_Value], target: int) -> None:
        for value in values:
            for source in value.nodes:
                self._edges[Edge(source, target, again=False)] = None
            self._waiting += [(before, target) for before in value.before]

    def _function(
        self,
        folded: Folded,
        given: list[_Value],
        modules: Sequence[str],
        parent: int | None,
        depth: int,
    ) -> list[_Value]:
        """Draw the calls of a function, and return where their results come from."""
        values = given + [_Value()] * len(folded.function.calls)
        for item in folded.items:
            if isinstance(item, Loop):
                self._layer(item, values, len(given), modules, parent, depth)
                continue
            call = folded.function.calls[item]
            taken = [values[at] for at in call.values()]
            about = self._about(call, folded.origins[item], modules[item] if modules else "")
            names = dict.fromkeys(value.name for value in taken if value.name)
            about.append(("takes", ", ".join(names)))
            operator = self._program.operators[call.operator]
            kind = summary.kind_of(operator)
            node = self._add(summary.plain_name(operator), kind, parent, about)
            self._connect(taken, node)
            values[len(given) + item] = _Value((node,))
        return values[len(given) :]

    def _layer(
        self,
        loop: Loop,
        values: list[_Value],
        first: int,
        modules: Sequence[str],
        parent: int | None,
        depth: int,
    ) -> None:
        variable = graph_text.VARIABLES[min(depth, len(graph_text.VARIABLES) - 1)]
        own = graph_text.modules_of(loop, modules, variable)
        title = graph_text.name_of_block(own)
        about = [("copies", str(loop.copies)), ("calls of each copy", str(loop.period))]
        layer = self._add(title, LAYER, parent, about, loop.copies)
        given = [values[at]._replace(before=((layer, call),)) for at, call in loop.carried]
        given += [_of_each([values[at] for at in each], variable) for each in loop.given]
        given += [_Value(name=each.name) for each in self._program.constants]
        results = self._function(loop.block, given, own, layer, depth + 1)
        self._of_layers[layer] = results
        for copy in range(loop.copies):
            start = first + loop.start + copy * loop.period
            values[start : start + loop.period] = results

    def _about(self, call: Call, origin: int, module: str) -> list[tuple[str, str]]:
        about = [
            ("operator", _full_name(self._program.operators[call.operator])),
            ("name", call.name),
        ]
        notes = self._program.notes
        if notes is not None:
            about += [("gives", notes.results.at(origin)), ("line", notes.lines.at(origin))]
        return [*about, ("module", module)]


def _of_each(values: Sequence[_Value], variable: str) -> _Value:
    """What the copies of a layer get in one place."""
    names = [value.name for value in values]
    found = template(names, variable) if len(set(names)) > 1 else None
    name = found.plain if found is not None else _few(list(dict.fromkeys(filter(None, names))))
    nodes = dict.fromkeys(node for value in values for node in value.nodes)
    before = dict.fromkeys(each for value in values for each in value.before)
    return _Value(tuple(nodes), tuple(before), name)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _full_name(operator: Operator) -> str:
    if operator.namespace == HIGHER_ORDER:
        return f"{HIGHER_ORDER}.{operator.name}"
    return ".".join(filter(None, (operator.namespace, operator.name, operator.overload)))
