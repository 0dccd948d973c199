"""Graphs as Dynamo hands them to a backend, and every single change of an argument in one."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npugx_cache.backend import lowering
from npugx_cache.backend import options as backend_options
from npugx_cache.key.graph_text import GraphText
from npugx_cache.key.recipe import Shaping
from npugx_cache.pieces.piece import Piece


def shaping(options=None, decompositions=(), backend="npugraph_ex"):
    parsed = backend_options.parse(options, backend)
    return Shaping(backend=backend, options=parsed, decompositions=tuple(decompositions))


@dataclass
class Captured:
    """One graph with its inputs, as a key is made of them."""

    graph_module: fx.GraphModule
    inputs: list[Any]
    static: tuple[int, ...]
    key: str
    title: str

    def text(self, graph_module=None):
        fake = lowering.beside(self.inputs)
        graph = self.graph_module if graph_module is None else graph_module
        text = GraphText(graph, self.inputs, self.static, str, fake)
        return text.nodes, text.inputs, tuple(text.symbols.describe_symbols())


def captured(function, *args, dynamic=None, using=None):
    """The first graph that Dynamo makes of a call, and its key."""
    found = []

    def keep(graph_module, example_inputs):
        piece = Piece.of(graph_module, example_inputs, using or shaping(), is_apart=False)
        kept = (graph_module, list(piece.inputs), piece.static)
        found.append(Captured(*kept, piece.fingerprint.key, piece.text.title))
        return graph_module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=keep, dynamic=dynamic)(*args)
    return found[0]


def nodes_of(graph_module):
    for module in graph_module.modules():
        if isinstance(module, fx.GraphModule):
            yield from module.graph.nodes


def changes(graph_module):
    """Single changes of a graph: what is changed, and a function that changes it and gives back
    what undoes that."""
    for node in nodes_of(graph_module):
        if node.op == "get_attr":
            continue  # its name is no part of the text, and it takes no arguments
        if node.op in ("call_function", "call_method"):
            yield f"{node.op} target", _setting(node, "target", _other_target(node))
        for place in ("args", "kwargs"):
            for what, changed in _variants(getattr(node, place), node):
                yield what, _setting(node, place, changed)
        stream = {**node.meta, "custom": {"stream": 3}}
        if node.op in ("call_function", "call_method"):
            yield "stream", _setting(node, "meta", stream)


def _setting(node, name, value):
    def change():
        before = getattr(node, name)
        setattr(node, name, value)
        return lambda: setattr(node, name, before)

    return change


def _other_target(node):
    if node.op == "call_method":
        return "atan2" if node.target != "atan2" else "add"
    return torch.atan2 if node.target is not torch.atan2 else torch.add


def _variants(value, node):
    """Each value that differs from `value` in one thing."""
    if isinstance(value, fx.Node):
        earlier = [each for each in value.graph.nodes if each is not value and each < node]
        for other in earlier[-2:]:
            yield "node", other
        yield "node is None", None
    elif isinstance(value, dict):
        for key, item in value.items():
            rest = {name: each for name, each in value.items() if name != key}
            yield "keyword is gone", rest
            yield "keyword", {**rest, f"{key}_": item}
            for what, changed in _variants(item, node):
                yield f"keyword {what}", {**value, key: changed}
    elif isinstance(value, (tuple, list)):
        kind = tuple if isinstance(value, tuple) else list
        yield "one more", kind([*value, 7])
        for index, item in enumerate(value):
            yield "one less", kind([*value[:index], *value[index + 1 :]])
            for what, changed in _variants(item, node):
                yield what, kind([*value[:index], changed, *value[index + 1 :]])
    else:
        yield from ((type(value).__name__, each) for each in _other_constants(value))


def _other_constants(value):
    if isinstance(value, bool):
        return [not value, int(value), None]
    if isinstance(value, int):
        return [value + 1, float(value), str(value), *([bool(value)] if value in (0, 1) else [])]
    if isinstance(value, float):
        return [value * 2 + 1, -value, int(value) if value == value // 1 else value / 2]
    if isinstance(value, str):
        return [value + "x"]
    if isinstance(value, torch.dtype):
        return [torch.float64 if value is not torch.float64 else torch.int32, str(value)]
    if isinstance(value, slice):
        return [slice(value.start, value.stop, 3), slice(5, value.stop, value.step)]
    return [0, "other"]


def renamed(graph_module):
    """A copy of a graph in which every node and every placeholder has another name."""
    made = copy.deepcopy(graph_module)
    for index, node in enumerate(nodes_of(made)):
        node.name = f"other_{index}"
        if node.op == "placeholder":
            node.target = f"given_{index}"
    return made
