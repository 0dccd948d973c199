"""The engine of the vendor's GE mode: CANN's graph engine compiles the aten graph as a whole.

The vendor's converters run at a compile alone. The graph is kept too, as for `inductor`: it runs
the calls that GE's graph can't, and it shows a reader what GE's graph does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from npugx_cache.backend import lowering, subgraphs
from npugx_cache.backend.capture.layout import Role
from npugx_cache.backend.capture_layout import layout_of
from npugx_cache.backend.codegen import operator_names
from npugx_cache.backend.engines import LIBRARY, CompiledLibrary, Engine, PassReport
from npugx_cache.backend.ge.convert import Source, convert_graph, is_dead
from npugx_cache.backend.ge.models import with_models
from npugx_cache.backend.ge.options import CACHE, GeOptions
from npugx_cache.backend.ge.refusals import refuse, refuse_floats, refuse_groups
from npugx_cache.backend.graph import to_program
from npugx_cache.backend.inductor.library import Library
from npugx_cache.backend.inductor.splitting import split
from npugx_cache.portable import NotPortable
from npugx_cache.private import ge_convert
from npugx_cache.private.runtime import depends_on_data
from npugx_cache.records import dataclass

if TYPE_CHECKING:
    from typing import Any

    from torch import fx

    from npugx_cache.backend.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ge(Engine):
    def optimise(
        self, graph_module: fx.GraphModule, options: Options, *, distinct_inputs: bool = False
    ) -> tuple[PassReport, ...]:
        """Convert the graph, and put the result in its `meta`; the graph itself is not changed.

        Raises `NotPortable` for a graph that GE can't have.
        """
        reports = Engine.optimise(self, graph_module, options, distinct_inputs=distinct_inputs)
        assert isinstance(options, GeOptions)
        graph_module.meta[LIBRARY] = _library(graph_module, dict(options.settings))
        return reports


ENGINES = {"ge": _Ge(passes=lambda *_: ())}


def _library(graph_module: fx.GraphModule, settings: dict[str, Any]) -> CompiledLibrary | None:
    to_program(graph_module)  # refuses a graph that can't be stored, before it is converted
    refuse_groups(graph_module)
    for node in graph_module.graph.nodes:
        if subgraphs.runs_graphs(node):
            refuse(node, f"backend 'ge' does not convert {node.target}", "select with torch.where")
        if depends_on_data(node.meta.get("val")):
            what = f"the size of what {node.target} returns depends on data"
            refuse(node, what, "use backend='npugraph_ex', or return tensors of fixed sizes")
    nodes = list(graph_module.graph.find_nodes(op="placeholder"))
    values = [node.meta["val"] for node in nodes]
    constants = {
        str(node.target): getattr(graph_module, str(node.target))
        for node in graph_module.graph.find_nodes(op="get_attr")
    }
    tensors = tuple(i for i, value in enumerate(values) if isinstance(value, torch.Tensor))
    sizes = tuple(i for i in range(len(values)) if i not in set(tensors))
    used = [node for node in nodes if any(not is_dead(user) for user in node.users)]
    refuse_floats(used)
    for value in (*(node.meta["val"] for node in used), *constants.values()):
        if isinstance(value, torch.Tensor):
            _require_plain(value)
    written = layout_of(graph_module).positions(Role.WRITTEN)
    _refuse_overlaps(values, written)
    parts = split(graph_module)
    if not parts.computed and not written:
        return None  # the graph has only views and arithmetic on sizes
    mode = ge_convert.fake_mode_of(values)
    if mode is None:
        raise NotPortable("the graph has no tensors among its arguments")
    order = (*tensors, *sizes)
    keeps_model = settings.pop(CACHE, False)
    source = Source(graph_module, parts, values, order, constants, mode)
    graph, words = convert_graph(source, settings)
    places = (*order, *(-1 for _ in constants))
    if not {places[graph.inputs[i].arguments[0]] for i in graph.updated} <= {*written}:
        raise NotPortable("the graph for GE writes to what the function leaves alone")
    if keeps_model:
        graph = with_models(graph)
    finish, _ = to_program(parts.finish)
    library = Library(
        engine="ge",
        tensors=tensors,
        sizes=sizes,
        constants=tuple(range(len(constants))),
        written=written,
        finish_inputs=parts.finish_inputs,
        finish_code=b"",
        finish_operators=tuple(zip(operator_names(finish), finish.operators, strict=True)),
    )
    return CompiledLibrary(library, finish, graph.pack(), words)


def _refuse_overlaps(values: list[Any], written: tuple[int, ...]) -> None:
    storages = [lowering.storages(value) for value in values]
    for position in written:
        if storages.count(storages[position]) > 1:
            raise NotPortable("an argument that is written to overlaps another one")


def _require_plain(tensor: torch.Tensor) -> None:
    if tensor.device.type != "npu":
        raise NotPortable(
            f"the graph engine runs on an NPU, and a tensor is on {tensor.device}: move it to the "
            "NPU before the call, or use backend='npugraph_ex'"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise NotPortable(f"an argument is a {tensor.layout} tensor")
    if tensor.is_conj() or tensor.is_neg():
        raise NotPortable("an argument is lazily conjugated or negated")
