"""A serving engine as vLLM 0.33 and sglang 0.5 are, as far as a compiler meets them.

Dynamo traces a model once. The engine cuts the graph at attention, has the pieces between compiled,
writes down the handles, and drops the guards. After a restart it hands the handles back.
"""

from __future__ import annotations

import ast
import inspect
import operator
import pprint
import time
from typing import NamedTuple

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.split_module import split_module

RETURNS_TUPLES = "tuple_return" in inspect.signature(split_module).parameters
"""Since torch 2.12 an engine can ask for pieces that always return a tuple."""


class Range(NamedTuple):
    """vLLM's range of sizes. Both ends are in it."""

    start: int
    end: int


class Engine:
    """`compiler` answers; `sizes` are ranges and single sizes, None is "any size" as sglang has it.

    `handles` is the file of handles. `single_values`: the pieces return a value where they have
    one result, as before torch 2.12; otherwise a tuple. `real`: a single size is compiled for real
    tensors, as old engines do.
    """

    def __init__(self, compiler, sizes, handles, single_values=False, real=False):
        self.compiler, self.sizes, self.file = compiler, sizes, handles
        self.single_values, self.real = single_values, real
        self.handles = ast.literal_eval(handles.read_text()) if handles.is_file() else {}
        self.cpu_seconds = 0.0
        self.loaded = self.compiled = 0
        self.pieces = []
        compiler.initialize_cache(str(handles.parent), False, "backbone")
        compiler.compute_hash()

    def compile(self, model):
        """The model as the engine runs it. The backend is called once, whatever sizes follow."""
        dropped = {"guard_filter_fn": lambda guards: [False] * len(guards)}
        return torch.compile(model, backend=self.backend, fullgraph=True, options=dropped)

    def backend(self, graph_module, example_inputs, **_):
        name_sizes(graph_module)
        parts, is_attention = cut(graph_module)
        extra = {} if self.single_values or not RETURNS_TUPLES else {"tuple_return": True}
        split = split_module(
            graph_module, None, parts.__getitem__, keep_original_order=True, **extra
        )
        pieces = {
            name: sub for name, sub in split.named_children() if int(name[7:]) not in is_attention
        }
        for index, (name, sub) in enumerate(pieces.items()):
            delattr(split, name)
            piece = Piece(self, sub, index)
            self.pieces.append(piece)
            setattr(split, name, piece)
        self.file.write_text(pprint.pformat(self.handles))
        return split.forward

    def answer(self, graph, inputs, index, size):
        key = None if size is None else tuple(size) if isinstance(size, Range) else size
        started = time.process_time()
        handle = self.handles.get((key, index, self.compiler.name))
        if handle is not None:
            run = self.compiler.load(handle, graph, inputs, index, size)
            self.loaded += 1
        else:
            name = f"artifact_{key}_subgraph_{index}"
            run, handle = self.compiler.compile(graph, inputs, {}, size, name)
            self.compiled += 1
        self.cpu_seconds += time.process_time() - started
        assert callable(run)
        if handle is not None:
            assert isinstance(handle[0], str)
            assert isinstance(handle[1], str)
            self.handles[key, index, self.compiler.name] = handle
        return run


class Piece(torch.nn.Module):
    """Runs what was compiled for the size of a call."""

    def __init__(self, engine, graph, index):
        super().__init__()
        given = [node.meta["example_value"] for node in graph.graph.find_nodes(op="placeholder")]
        self.place = next(i for i, value in enumerate(given) if isinstance(value, torch.SymInt))
        self.runs = {}
        for size in engine.sizes:
            inputs = given
            if isinstance(size, int):
                inputs = concrete(given, size, real=engine.real)
            self.runs[size] = engine.answer(graph, inputs, index, size)

    def forward(self, *args):
        size = args[self.place]
        fits = (run for of, run in self.runs.items() if not isinstance(of, int))
        return (self.runs.get(size) or next(fits))(*args)


def concrete(given, size, *, real):
    """Inputs for one size: fakes of a new mode, or real tensors, and plain numbers."""

    def number(value):
        if not isinstance(value, torch.SymInt):
            return value
        expression = value.node.expr
        return int(expression.subs(dict.fromkeys(expression.free_symbols, size)))

    def made(value):
        if not isinstance(value, torch.Tensor):
            return number(value)
        layout = [*map(number, value.shape)], [*map(number, value.stride())]
        return torch.empty_strided(*layout, dtype=value.dtype, device=value.device).zero_()

    from torch._guards import tracing
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    if real:
        with unset_fake_temporarily():
            return [made(value) for value in given]
    with tracing(None), FakeTensorMode(shape_env=ShapeEnv()):
        return [made(value) for value in given]


def cut(graph_module):
    """The number of the part that each node belongs to, and the parts that are attention."""
    parts, attention, current = {}, set(), 0
    for node in graph_module.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        source = node.args[0] if node.target is operator.getitem else None
        if isinstance(source, fx.Node) and source in parts:
            parts[node] = parts[source]
        elif "scaled_dot_product_attention" in str(node.target):
            attention.add(current + 1)
            parts[node] = current + 1
            current += 2
        else:
            parts[node] = current
    return parts, attention


def name_sizes(graph_module):
    """Take `x.size()` apart, so that no tuple of sizes crosses a cut."""
    graph = graph_module.graph
    for node in graph.find_nodes(op="call_method", target="size"):
        tensor, *wanted = node.args
        sizes = []
        with graph.inserting_before(node):
            for dim, size in enumerate(tensor.meta["example_value"].shape):
                sizes.append(size)
                if isinstance(size, torch.SymInt):
                    sizes[dim] = graph.call_function(torch.ops.aten.sym_size.int, (tensor, dim))
                    sizes[dim].meta["example_value"] = size
        if wanted:
            _put(node, sizes[wanted[0]])
        for user in list(node.users):
            if user.target is operator.getitem:
                _put(user, sizes[user.args[1]])
                graph.erase_node(user)
            else:
                spliced = [sizes if each is node else [each] for each in user.args]
                user.args = tuple(each for some in spliced for each in some)
        graph.erase_node(node)
    graph_module.recompile()


def _put(node, value):
    """`value`, a node or a number, in the place of a node."""
    for user in list(node.users):
        user.args = fx.node.map_arg(user.args, lambda each: value if each is node else each)
        user.kwargs = fx.node.map_arg(user.kwargs, lambda each: value if each is node else each)
