"""Converts an aten graph, with the vendor's converters, to a graph for the graph engine (GE)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from npugx_cache import location
from npugx_cache.backend.engines import NotCompiled
from npugx_cache.backend.ge import engine_graph as data
from npugx_cache.backend.ge.refusals import NO_CONVERTER, refuse, refuse_operators
from npugx_cache.backend.inductor.splitting import Computing
from npugx_cache.backend.passes import effects
from npugx_cache.portable import NotPortable
from npugx_cache.private import ge_convert, graph_engine
from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npugx_cache.backend.inductor.splitting import Split

_KINDS = {
    "TensorInput": data.TENSOR,
    "DiscontiguousTensorInput": data.CONTIGUOUS,
    "ValueInput": data.NUMBERS,
    "SymPackInput": data.NUMBERS,
}
"""The vendor's classes of inputs, and how we make the same."""


class Source(NamedTuple):
    """What is converted.

    `values`: the traced values of the graph's inputs; `order`: the arguments of the engine's graph
    are the inputs at these places, then the constants. `mode`: the fake mode of the trace.
    """

    graph_module: fx.GraphModule
    parts: Split
    values: Sequence[Any]
    order: Sequence[int]
    constants: Mapping[str, torch.Tensor]
    mode: Any


def convert_graph(source: Source, settings: Mapping[str, Any]) -> tuple[data.EngineGraph, str]:
    """The graph for the engine, and in words what is in it.

    Raises `NotPortable` and `NotCompiled`.
    """
    try:
        ge_convert.load()
        functional = _functional(source)
        refuse_operators(functional)
        inputs = [node.meta["val"] for node in functional.graph.find_nodes(op="placeholder")]
        made = ge_convert.convert(functional, inputs, source.mode, settings)
    except ge_convert.NotConverted as error:
        if not error.lasting:
            raise NotCompiled(str(error)) from error
        if error.node is not None:
            refuse(error.node, f"{error.node.target} has no graph of GE: {error}", NO_CONVERTER)
        raise NotPortable(f"the vendor's converters refuse the graph: {error}") from error
    except graph_engine.EngineError as error:
        raise NotCompiled(str(error)) from error
    return _graph(made, source.parts, functional), _words(made)


class _Needed(Computing):
    """Runs a graph without the calls that nobody needs; some of them ask tensors for numbers."""

    def run_node(self, node: fx.Node) -> Any:
        return None if is_dead(node) else super().run_node(node)


def is_dead(node: fx.Node) -> bool:
    """Whether a call has no effect, and nothing uses its result."""
    if node.op != "call_function" or node.users:
        return False
    done = effects.of(node)
    return not done.written and not done.unknown


def _functional(source: Source) -> fx.GraphModule:
    """The graph in the form that the converters take.

    It computes without writing, and copies results into the written inputs at the end. A number is
    traced as the size of an empty tensor, and becomes a symbolic input again.
    """
    graph_module, parts, values, order, constants, mode = source
    with mode:
        given = [_traceable(values[place]) for place in order]
    given += [mode.from_tensor(tensor, static_shapes=True) for tensor in constants.values()]

    def compute(*arguments: torch.Tensor) -> list[torch.Tensor]:
        inputs: dict[int, Any] = dict(zip(order, arguments, strict=False))
        for place in order:
            if not isinstance(values[place], torch.Tensor):
                inputs[place] = inputs[place].shape[0]
        own = dict(zip(constants, arguments[len(order) :], strict=True))
        run = _Needed(graph_module, own, parts.computed)
        made: list[torch.Tensor] = run.run(*(inputs[i] for i in range(len(values))))
        return made

    with torch.no_grad(), mode, enable_python_dispatcher(), preserve_node_meta():
        functional = make_fx(torch.func.functionalize(compute, remove="mutations"))(*given)
    functional.graph.eliminate_dead_code()
    for node, place in zip(functional.graph.find_nodes(op="placeholder"), order, strict=False):
        if isinstance(values[place], torch.SymInt):
            for user in list(node.users):
                user.replace_all_uses_with(node)
                functional.graph.erase_node(user)
            node.meta["val"] = values[place]
    functional.recompile()
    return functional


def _traceable(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    if not isinstance(value, (int, torch.SymInt)):
        raise NotPortable(f"an argument is neither a tensor nor an int: {type(value).__name__}")
    if not bool(value >= 0):  # for a symbolic number, this question becomes a guard
        raise NotPortable("a whole number among the arguments is negative")
    return torch.empty_strided((value,), (0,))


def _graph(
    made: ge_convert.Converted, parts: Split, functional: fx.GraphModule
) -> data.EngineGraph:
    definition = made.definition
    if any(_is_dynamic(node.meta.get("val")) for node in functional.graph.nodes):
        # A size that is computed can be 0, whatever the sizes of the trace were.
        options = dict(definition.options) | {"ge.exec.allTensorNotEmpty": "0"}
        definition = definition._replace(options=tuple(sorted(options.items())))
    return data.EngineGraph(
        definition=definition,
        engine=tuple(sorted(made.engine.items())),
        inputs=tuple(_input(*each) for each in made.inputs),
        results=_results(made, parts),
        written=tuple(sorted(made.written.items())),
        updated=tuple(sorted({*made.updated, *made.written.values()})),
    )


def _is_dynamic(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(
        isinstance(size, torch.SymInt) for size in value.shape
    )


def _input(name: str, arguments: tuple[int, ...]) -> data.Input:
    if name not in _KINDS:
        what = "random numbers" if name == "RngStatusInput" else f"an input of the kind {name}"
        raise NotPortable(f"the graph for GE needs {what}, which a stored graph does not have")
    return data.Input(_KINDS[name], arguments)


def _results(made: ge_convert.Converted, parts: Split) -> tuple[data.Result, ...]:
    found: list[data.Result] = []
    for node, index in zip(parts.computed, made.results, strict=True):
        place = location.of_text(node.stack_trace)
        if isinstance(index, str):
            what = f"a result of {node.target} is no result of GE's, but a {index}"
            raise NotPortable(location.reason(what, place, "return a new tensor with elements"))
        seen = {each.place for each in found} | {*made.written}
        order = _order(node.meta["val"])
        if order is None:
            what = f"a result of {node.target} repeats elements in memory or leaves gaps"
            raise NotPortable(location.reason(what, place, "return its .contiguous()"))
        found.append(data.Result(index, order, index in seen))
    return tuple(found)


def _order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The axes of a result by stride; () if it is contiguous, None if its memory is not dense."""
    if value.is_contiguous():
        return ()
    axes = sorted(range(value.dim()), key=lambda axis: _hint(value.stride(axis)), reverse=True)
    return tuple(axes) if value.permute(axes).is_contiguous() else None


def _hint(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def _words(made: ge_convert.Converted) -> str:
    types = ", ".join(f"{count} {name}" for name, count in sorted(made.operators.items()))
    return f"{made.operators.total()} operators for GE: {types}"
