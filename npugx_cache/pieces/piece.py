"""A piece: one graph that somebody else traced, with its inputs and its key."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from npugx_cache.backend import lowering
from npugx_cache.key import environment
from npugx_cache.key.fingerprint import Fingerprint
from npugx_cache.key.graph_text import GraphText, check_input
from npugx_cache.portable import devices, digest
from npugx_cache.private import runtime, streams, vendor_scopes
from npugx_cache.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npugx_cache.key.fingerprint import Named
    from npugx_cache.key.recipe import Shaping


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One graph, what it will be lowered with, and its key.

    `inputs` are the example inputs, real or fake. `static` are the positions of those that stay in
    their place. `held` are the tensors that the graph holds. What is stored takes them as further
    inputs: they stay the caller's, are in no key, and are never stored.
    """

    graph_module: fx.GraphModule
    inputs: Sequence[Any]
    static: tuple[int, ...]
    is_apart: bool
    held: tuple[torch.Tensor, ...]
    text: GraphText
    fingerprint: Fingerprint

    @classmethod
    def of(
        cls,
        graph_module: fx.GraphModule,
        example_inputs: Sequence[Any],
        shaping: Shaping,
        *,
        is_apart: bool,
    ) -> Piece:
        """The piece of a graph; raises `NotPortable` for a graph that no key can cover.

        Calls of the graph that mean something in this process alone become operators, in the graph
        itself. The example inputs may be real or fake, their sizes numbers or symbols.
        """
        for example in example_inputs:
            check_input(example)
        streams.make_waits_operators(graph_module)
        vendor_scopes.replace(graph_module, _scope_operator)
        static = lowering.static_inputs(graph_module, example_inputs)
        fakes = lowering.fake_inputs(graph_module, example_inputs)
        kind = runtime.accelerator()
        index = runtime.current_index(kind) if kind is not None else None
        rename = str if index is None or kind is None else devices.to_current(kind, index)
        text = GraphText(graph_module, fakes, static, rename, lowering.beside(fakes))
        return cls(
            graph_module=graph_module,
            inputs=example_inputs,
            static=static,
            is_apart=is_apart,
            held=tuple(operator.attrgetter(name)(graph_module) for name in text.held),
            text=text,
            fingerprint=Fingerprint.of(_factors(text, shaping, kind)),
        )

    @property
    def tensors_by_name(self) -> dict[str, torch.Tensor]:
        """The tensors that the graph takes, if one holds others: conditions tell of its attributes.

        Equal graphs with other attributes have equal keys, and are entries beside each other.
        """
        if not self.text.has_wrappers:
            return {}
        values = enumerate((*self.inputs, *self.held))
        return {f"arg{n}": value for n, value in values if isinstance(value, torch.Tensor)}

    @property
    def identity(self) -> str:
        """The digest of what stays when sizes and types change: siblings are alike in it."""
        return digest(["piece", self.text.title])

    def lift_held_tensors(self) -> tuple[fx.GraphModule, list[Any], tuple[int, ...]]:
        """The graph with the tensors that it holds as inputs, with all inputs and static ones."""
        graph_module = self.graph_module
        if self.is_apart:
            from npugx_cache.trace.apart import graph_apart  # a hit loads nothing of `trace`

            graph_module = graph_apart(graph_module)
        if not self.held:
            return graph_module, list(self.inputs), self.static
        held = range(len(self.inputs), len(self.inputs) + len(self.held))
        graph_module = _with_inputs_for(graph_module, self.text.held)
        return graph_module, [*self.inputs, *self.held], (*self.static, *held)


def _scope_operator(name: str) -> Any:
    from npugx_cache.backend import operators  # registers them, and few graphs have scopes

    return operators.scope_operator(name)


def _factors(text: GraphText, shaping: Shaping, accelerator: str | None) -> Iterator[Named]:
    """`accelerator` counts if the graph may make a tensor on it."""
    default = runtime.default_device()
    named = {*text.named_devices, default.type if default is not None else "cpu"}
    kinds = text.device_types | ({accelerator} & named if accelerator else set())
    yield "graph.nodes", digest([text.nodes])
    yield "graph.symbols", "; ".join(text.symbols.describe_symbols())
    for position, described in enumerate(text.inputs):
        yield f"graph.input.{position}", described
    yield from shaping.shaping_factors()
    yield from environment.factors(frozenset(kinds), traced=False)
    yield from environment.lowering_factors()


def _with_inputs_for(graph_module: fx.GraphModule, names: Sequence[str]) -> fx.GraphModule:
    """A copy of a graph that takes the tensors with these names as its last inputs."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    nodes = list(graph_module.graph.nodes)
    for node in nodes:
        if node.op == "placeholder":
            copies[node] = graph.node_copy(node)
    held = {name: graph.placeholder(f"held_{index}") for index, name in enumerate(names)}
    for node in nodes:
        if node.op == "get_attr" and str(node.target) in held:
            copies[node] = held[str(node.target)]
        elif node.op != "placeholder":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(graph_module, graph)
