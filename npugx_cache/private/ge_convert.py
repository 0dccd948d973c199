"""Converts an fx graph to a graph for the graph engine (GE), with the converters of torchair.

Calling `convert` loads torchair's Python, and with it Dynamo and Inductor: a restore must not.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import TracingContext, detect_fake_mode, tracing

from npugx_cache.interpreter.interruptions import let_through
from npugx_cache.private import graph_engine
from npugx_cache.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import fx

_NAME = "npugx_cache"
_KNOWN = "2.13"
"""The version of torch_npu whose private names of torchair are used here."""


class NotConverted(Exception):
    """There is no graph of the engine for an fx graph.

    `node` is the call that has no converter, if one is at fault; `lasting` is False for what an
    installation may change.
    """

    def __init__(self, text: str, node: fx.Node | None = None, *, lasting: bool = True) -> None:
        super().__init__(text)
        self.node = node
        self.lasting = lasting


class Converted(NamedTuple):
    """A converted graph in plain data.

    engine: the options that the engine is started with. inputs: for each input of the engine the
    vendor's name of how it is made, and the positions of the fx graph's inputs. results: for each
    output of the fx graph the result of the engine, or why it is none. written: result to input.
    updated: inputs whose memory the graph changes. operators: how often each type of operator is in
    the graph.
    """

    definition: graph_engine.Definition
    engine: dict[str, str]
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    results: tuple[int | str, ...]
    written: dict[int, int]
    updated: tuple[int, ...]
    operators: Counter[str]


def fake_mode_of(values: Sequence[Any]) -> Any:
    """The fake mode that is active, or that traced values belong to; None if there is none."""
    return detect_fake_mode(list(values))


def convert(
    module: fx.GraphModule, inputs: Sequence[Any], mode: Any, settings: Mapping[str, Any]
) -> Converted:
    """Convert a functional graph; `inputs` are fake tensors of `mode` and symbolic numbers.

    `settings` are names of the vendor's CompilerConfig with dots, and values. Raises NotConverted.
    """
    parts, followed = load(), _Followed()
    try:
        return _converted(parts, followed, module, inputs, mode, settings)
    except (NotConverted, graph_engine.EngineError):
        raise
    except Exception as error:
        let_through(error)
        # Converters raise errors of any kind; each means that there is no graph of the engine.
        raise NotConverted(graph_engine.first_line(error), followed.call) from error


class _Followed:
    """The call that is being converted, or None."""

    call: fx.Node | None = None


def _converted(
    parts: _Parts,
    followed: _Followed,
    module: fx.GraphModule,
    inputs: Sequence[Any],
    mode: Any,
    settings: Mapping[str, Any],
) -> Converted:
    class Following(parts.compiler._NpuGraphConverter):  # type: ignore[name-defined, misc]
        def run_node(self, node: Any) -> Any:
            followed.call = node if node.op == "call_function" else None
            return super().run_node(node)

    config = parts.config.CompilerConfig()
    for name, value in settings.items():
        holder: Any = config
        *path, last = name.split(".")
        for each in path:
            holder = getattr(holder, each)
        setattr(holder, last, value)
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.view.default:  # as the vendor does
            node.target = torch.ops.aten.reshape.default
    module.recompile()
    with tracing(TracingContext(mode)), torch.no_grad(), _own_engine(parts):
        graph = parts.converter.GeConcreteGraph(config, name=_NAME)
        Following(module, graph=graph, garbage_collect_values=False).run(*inputs)
        followed.call = None
        observer = parts.observer.GraphTransformObserver(module, inputs, config)
        graph.optimize_graph_without_runtime(*inputs, observer=observer, aot_gm=module)
        return _plain(parts, graph)


class _Parts(NamedTuple):
    config: Any
    converter: Any
    compiler: Any
    observer: Any
    backend: Any
    shapes: Any


def load() -> _Parts:
    """Load the converters; raises NotConverted."""
    found = str(getattr(sys.modules.get("torch_npu"), "__version__", "none"))
    if not found.startswith(f"{_KNOWN}."):
        what = f"the converters to GE of torch_npu {_KNOWN} are known, and this is {found}"
        raise NotConverted(what, lasting=False)
    try:
        with _handlers_kept():
            importlib.import_module("torch_npu.dynamo.torchair")
            importlib.import_module("torchair._ge_concrete_graph.ge_converter.custom")
            return _Parts(
                *map(
                    importlib.import_module,
                    (
                        "torchair.configs.compiler_config",
                        "torchair._ge_concrete_graph.fx2ge_converter",
                        "torchair.npu_fx_compiler",
                        "torchair._utils.graph_transform_observer",
                        "torchair.core._backend",
                        "torchair._ge_concrete_graph.utils",
                    ),
                )
            )
    except ImportError as error:
        what = f"torchair, which converts graphs for the graph engine, can't be loaded: {error}"
        raise NotConverted(what, lasting=False) from error


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep the program's handlers of signals: torchair replaces two of them when it is loaded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            if handler is not None:
                signal.signal(each, handler)


@contextlib.contextmanager
def _own_engine(parts: _Parts) -> Iterator[None]:
    """Start the graph engine by our rules, where the vendor's code starts it."""
    names = vars(parts.converter)
    vendors = names["initialize_graph_engine"]

    def start(options: Mapping[str, str]) -> None:
        graph_engine.start({str(name): str(value) for name, value in options.items()})
        vendors(options)

    names["initialize_graph_engine"] = start
    try:
        yield
    finally:
        names["initialize_graph_engine"] = vendors


def own_converter(target: Any) -> str:
    """Where the converter of an operator comes from: the module that defines it, or ""."""
    found = getattr(target, "_ge_converter", None)
    return str(getattr(found, "__module__", "")) if found is not None else ""


def _plain(parts: _Parts, graph: Any) -> Converted:
    options, engine = graph._normalize_ge_option()
    if parts.backend._disable_external_mem_base_for_autofuse():
        options["torchair.disable_external_mem_base"] = "1"
    if graph.graph.used_process_group:
        raise NotConverted("the graph communicates with other ranks")
    for op in graph.graph.op:
        _set_format(op)
    attributes = graph.graph.attr
    return Converted(
        definition=graph_engine.Definition(
            graph=graph.graph.SerializeToString(),
            options=tuple(sorted((str(name), str(value)) for name, value in options.items())),
            placements=tuple(attributes["_input_placements"].list.i),
            dtypes=tuple(attributes["_output_dtypes"].list.i),
            executor=attributes["_executor_type"].i,
            input_shapes=tuple(map(tuple, parts.shapes._get_input_shape(graph.graph))),
            output_shapes=tuple(map(tuple, parts.shapes._get_output_shapes(graph.graph))),
        ),
        engine={str(name): str(value) for name, value in engine.items()},
        inputs=tuple(_input(info.func) for info in graph._input_info_list),
        results=tuple(_results(graph)),
        written=dict(graph._graph_output_ref_input),
        updated=tuple(graph._ref_data_idx),
        operators=Counter(op.type for op in graph.graph.op),
    )


_FORMATS = {4: 0, 5: 30}
"""NCHW and NCDHW: the formats that torch_npu gives new tensors of so many axes. All others are ND,
as the converters write."""


def _set_format(op: Any) -> None:
    """Name the format of an input, as the vendor does at the first call."""
    if op.type == "Data" and op.output_desc[0].device_type == "NPU":
        number = _FORMATS.get(len(op.output_desc[0].shape.dim))
        for described in (op.input_desc[0], op.output_desc[0]) if number is not None else ():
            described.attr["format_for_int"].i = number


def _input(function: Any) -> tuple[str, tuple[int, ...]]:
    name = type(function).__name__.strip("_")
    several = getattr(function, "fx_input_idx_list", None)
    one = getattr(function, "fx_input_idx", None)
    return name, tuple(several) if several is not None else (one,) if one is not None else ()


def _results(graph: Any) -> Iterator[int | str]:
    for index, output in enumerate(graph._fx_outputs):
        kind = type(output).__name__
        yield graph._fx_outputs_mapping.get(index, kind)
