"""Caches the module of an exported program: `cached_graph(ep.module(), ep.example_inputs)`.

Such a module takes nested arguments and checks them, and then runs a graph of flat values.
The graph is a piece. A module with the same arguments and the same checks runs in its place.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from npugx_cache.key.symbols import Symbols, numbers_of
from npugx_cache.pieces import compiled
from npugx_cache.pieces.cached_graph import CachedGraph
from npugx_cache.portable import NotPortable
from npugx_cache.private import exports
from npugx_cache.store_client import StoreClient
from npugx_cache.trace.apart import fakes_apart, graph_apart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npugx_cache.config import Settings
    from npugx_cache.key.recipe import Shaping


def of_module(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    shaping: Shaping,
    settings: Settings,
    *,
    captures: bool,
) -> CachedGraph:
    """See `cached_graph`. A module that can't be cached runs as it is."""
    client = StoreClient("an exported program", shaping.backend, settings, compiled.counters)

    def answer() -> CachedGraph | compiled.Bypassed:
        checks = [node for node in module.graph.nodes if exports.checks_inputs(module, node)]
        inputs = _inputs(module, pytree.tree_leaves(example_inputs))
        unused = [node for node, _ in inputs if {*node.users} <= {*checks}]
        used = {node: value for node, value in inputs if node not in unused}
        with fakes_apart(tuple(used.values()), ranges_hold=True) as fakes:
            graph = graph_apart(module, left_out={*checks, *unused})
            found = compiled.of_graph(graph, fakes, shaping, settings, captures=captures)
            # The checks of the program know nothing of these, and nobody would trace again.
            if Symbols(fakes).conditions():
                what = "the compiled graph demands more of its sizes than the program checks"
                return compiled.Bypassed(what)
        run = _called_alike(module, checks, tuple(used), found)
        return CachedGraph(run, found.entry, found.explain())

    found = compiled.attempt_answer(answer, client)
    if isinstance(found, CachedGraph):
        return found
    client.tell_of_bypass(*found)
    return CachedGraph(module, None, client.explain_lookup())


def _inputs(module: fx.GraphModule, given: Sequence[Any]) -> Sequence[tuple[fx.Node, Any]]:
    """The inputs with the values to compile for.

    They are those given, or the program's own where sizes are dynamic.
    """
    inputs = module.graph.find_nodes(op="placeholder")
    own = [node.meta.get("val") for node in inputs]
    if len(own) != len(given):
        raise NotPortable(f"the program takes {len(own)} values, and {len(given)} were given")
    if not any(isinstance(each, torch.SymInt) for value in own for each in numbers_of(value)):
        return tuple(zip(inputs, given, strict=True))
    for place, (value, example) in enumerate(zip(own, given, strict=True)):
        if _kind(value) != _kind(example):
            raise NotPortable(f"input {place} is another than the one that was exported")
    return tuple(zip(inputs, own, strict=True))


def _kind(value: Any) -> tuple[object, ...]:
    if not isinstance(value, torch.Tensor):
        return (type(value),) if not isinstance(value, (int, torch.SymInt)) else (int,)
    return value.dtype, value.device, value.dim(), value.is_contiguous()


def _called_alike(
    module: fx.GraphModule, checks: Sequence[fx.Node], used: Sequence[fx.Node], cached: CachedGraph
) -> fx.GraphModule:
    """A module with the arguments and the checks of another one, with a cached graph inside.

    The graph takes those of the inputs that are `used`.
    """

    def run(*inputs: Any) -> Any:
        return cached(*inputs)

    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in (*module.graph.find_nodes(op="placeholder"), *checks):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    called = graph.call_function(run, tuple(copies[node] for node in used))
    results: Any = module.graph.output_node().args[0]
    graph.output(
        tuple(
            graph.call_function(operator.getitem, (called, place)) for place in range(len(results))
        )
    )
    exports.share_signature(graph, module.graph)
    made = fx.GraphModule(module, graph)
    for hook in exports.checks_before(module):
        made.register_forward_pre_hook(
            lambda _, args, kwargs, hook=hook: hook(module, args, kwargs), with_kwargs=True
        )
    return made
