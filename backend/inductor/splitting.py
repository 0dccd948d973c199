"""Splits an aten graph into the part that a compiled library computes, and the finish in Python."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.node import map_arg

from npugx_cache.backend import lowering
from npugx_cache.backend.passes import effects
from npugx_cache.portable import NotPortable
from npugx_cache.private import schemas

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """computed: the nodes whose final values the library returns; none of them share memory.

    finish: a graph that takes the inputs at `finish_inputs` and then the values of `computed`, and
    returns the outputs of the whole graph.
    """

    computed: tuple[fx.Node, ...]
    finish: fx.GraphModule
    finish_inputs: tuple[int, ...]


def split(graph_module: fx.GraphModule) -> Split:
    """Split a graph. Raises `NotPortable` if an output can be made only by the whole graph."""
    return _Splitter(graph_module).split()


class _Splitter:
    def __init__(self, graph_module: fx.GraphModule) -> None:
        self._module = graph_module
        nodes = list(graph_module.graph.nodes)
        self._inputs = [node for node in nodes if node.op == "placeholder"]
        self._outputs = nodes[-1].args[0]
        self._first: dict[int, fx.Node] = {}
        for node in nodes[:-1]:
            for storage in _storages(node):
                self._first.setdefault(storage, node)
        self._finish = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}

    def split(self) -> Split:
        computed = tuple(dict.fromkeys(self._computed()))
        used = list(self._used_inputs(computed))
        for node in [*(self._inputs[i] for i in used), *computed]:
            self._copies[node] = self._finish.placeholder(node.name)
            self._copies[node].meta = dict(node.meta)
        self._finish.output(map_arg(self._outputs, self._copy))
        finish = fx.GraphModule(self._module, self._finish)
        return Split(computed=computed, finish=finish, finish_inputs=tuple(used))

    def _computed(self) -> Iterator[fx.Node]:
        """The nodes that the library returns.

        A result of which several outputs are views is returned once, as a whole.
        """
        tensors = [node for node in _nodes_of(self._outputs) if _storages(node)]
        seen = Counter(storage for node in dict.fromkeys(tensors) for storage in _storages(node))
        for node in tensors:
            (storage,) = _storages(node)
            first = self._first[storage]
            if first.op in ("placeholder", "get_attr"):
                continue  # a view of an input
            yield node if seen[storage] == 1 else self._base(first, storage)

    def _base(self, first: fx.Node, storage: int) -> fx.Node:
        if isinstance(first.meta["val"], torch.Tensor):
            return first
        for node in first.users:  # `first` has several results: find the one in this storage
            if node.target is operator.getitem and _storages(node) == [storage]:
                return node
        raise NotPortable(f"several outputs are views of a result of {first.target}")

    def _used_inputs(self, computed: tuple[fx.Node, ...]) -> Iterator[int]:
        needed: set[fx.Node] = set()
        pending = list(_nodes_of(self._outputs))
        while pending:
            node = pending.pop()
            if node not in needed and node not in computed:
                needed.add(node)
                pending += self._steps_back(node)
        yield from (i for i, node in enumerate(self._inputs) if node in needed)

    def _steps_back(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that the finish needs in order to make this node once more.

        The finish may contain only views and arithmetic on sizes. Raises `NotPortable` for others.
        """
        if node.op == "placeholder":
            return []
        done = effects.of(node)
        if done.written and done.aliased:
            return [done.aliased[0]]  # the library has done the write; the result is the argument
        if node.op == "get_attr" or done.unknown or done.written:
            raise NotPortable(f"an output uses {node.name}, which a library can't return")
        inputs: list[fx.Node] = node.all_input_nodes
        if _storages(node) and not done.aliased:
            raise NotPortable(f"an output is a view that depends on a result of {node.target}")
        if not _storages(node) and any(map(_storages, inputs)) and not _asks_for_size(node):
            raise NotPortable(f"an output is a number that {node.target} reads from a tensor")
        return inputs

    def _copy(self, node: fx.Node) -> fx.Node:
        if node in self._copies:
            return self._copies[node]
        done = effects.of(node)
        if done.written and done.aliased:
            made = self._copy(done.aliased[0])
        else:
            made = self._finish.node_copy(node, self._copy)
        self._copies[node] = made
        return made


def _asks_for_size(node: fx.Node) -> bool:
    schema = schemas.schema_of(node.target)
    return schema is not None and schema.name.startswith("aten::sym_")


def _nodes_of(outputs: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    map_arg(outputs, found.append)
    return found


def _storages(node: fx.Node) -> list[int]:
    return lowering.storages(node.meta.get("val"))


class Computing(fx.Interpreter):
    """Runs a graph on given inputs and constants, and returns the values of chosen nodes."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        constants: Mapping[str, Any],
        computed: tuple[fx.Node, ...],
    ) -> None:
        super().__init__(graph_module, garbage_collect_values=False)
        self._constants = constants
        self._computed = computed

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        del args, kwargs
        return self._constants[str(target)]

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        del target, args, kwargs
        return [self.env[node] for node in self._computed]
