"""The engine that compiles the aten graph, as it was traced, to a shared library with Inductor.

The graph is kept too: it runs for inputs with overlaps that the library can't handle, and it shows
a reader what the library does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from npugx_cache.backend import lowering, subgraphs
from npugx_cache.backend.capture.layout import Role
from npugx_cache.backend.capture_layout import layout_of
from npugx_cache.backend.codegen import operator_names
from npugx_cache.backend.engines import LIBRARY, CompiledLibrary, Engine, NotCompiled, PassReport
from npugx_cache.backend.graph import to_program
from npugx_cache.backend.inductor.library import Library
from npugx_cache.backend.inductor.splitting import Computing, Split, split
from npugx_cache.backend.options.inductor import InductorOptions
from npugx_cache.errors import OptionError
from npugx_cache.portable import NotPortable
from npugx_cache.private import inductor_compile
from npugx_cache.private.runtime import depends_on_data
from npugx_cache.records import dataclass

if TYPE_CHECKING:
    from torch import fx

    from npugx_cache.backend.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inductor(Engine):
    def optimise(
        self, graph_module: fx.GraphModule, options: Options, *, distinct_inputs: bool = False
    ) -> tuple[PassReport, ...]:
        """Compile the graph, and put the library in its `meta`; the graph itself is not changed.

        Raises `NotPortable` for a graph that can't be a library, and OptionError for a bad setting.
        """
        reports = Engine.optimise(self, graph_module, options, distinct_inputs=distinct_inputs)
        assert isinstance(options, InductorOptions)
        graph_module.meta[LIBRARY] = _library(graph_module, dict(options.settings))
        return reports


ENGINES = {"inductor": _Inductor(passes=lambda *_: ())}

_WORDS = "compiled to a shared library, which runs unless arguments that are written to overlap"


def _library(graph_module: fx.GraphModule, settings: dict[str, Any]) -> CompiledLibrary | None:
    to_program(graph_module)  # refuses a graph that can't be stored, before minutes are spent on it
    if calls := [node for node in graph_module.graph.nodes if subgraphs.runs_graphs(node)]:
        raise NotPortable(
            f"the backend 'inductor' does not compile {calls[0].target} ahead of time"
        )
    if any(depends_on_data(node.meta.get("val")) for node in graph_module.graph.nodes):
        return None  # Inductor does not keep the checks of sizes that only data tell
    graph = _Inputs.of(graph_module)
    written = layout_of(graph_module).positions(Role.WRITTEN)
    graph.refuse_overlaps(written)
    parts = split(graph_module)
    if not parts.computed and not written:
        return None  # the graph has only views and arithmetic on sizes
    try:
        data = _compiled(graph_module, graph, parts, settings)
    except inductor_compile.NotCompiled as error:
        raise NotCompiled(str(error)) from error
    except inductor_compile.SettingError as error:
        raise OptionError(str(error)) from error
    finish, _ = to_program(parts.finish)
    names = zip(operator_names(finish), finish.operators, strict=True)
    library = Library(
        engine="inductor",
        tensors=graph.tensors,
        sizes=graph.sizes,
        constants=tuple(range(len(graph.constants))),
        written=written,
        finish_inputs=parts.finish_inputs,
        finish_code=b"",
        finish_operators=tuple(names),
    )
    return CompiledLibrary(library, finish, data, _WORDS)


class _Inputs(NamedTuple):
    """A graph's inputs: traced values, positions of tensors and of numbers; and its constants."""

    values: tuple[Any, ...]
    tensors: tuple[int, ...]
    sizes: tuple[int, ...]
    constants: dict[str, torch.Tensor]

    @classmethod
    def of(cls, graph_module: fx.GraphModule) -> _Inputs:
        nodes = list(graph_module.graph.nodes)
        values = tuple(node.meta["val"] for node in nodes if node.op == "placeholder")
        tensors = tuple(i for i, value in enumerate(values) if isinstance(value, torch.Tensor))
        sizes = tuple(i for i in range(len(values)) if i not in set(tensors))
        constants = {
            str(node.target): getattr(graph_module, str(node.target))
            for node in nodes
            if node.op == "get_attr"
        }
        for value in (*(values[i] for i in tensors), *constants.values()):
            _require_plain(value)
        return cls(values, tensors, sizes, constants)

    def refuse_overlaps(self, written: tuple[int, ...]) -> None:
        storages = [lowering.storages(value) for value in self.values]
        for position in written:
            if storages.count(storages[position]) > 1:
                raise NotPortable("an argument that is written to overlaps another one")


def _require_plain(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise NotPortable(
            f"the backend 'inductor' compiles for the CPU only, and a tensor is on {tensor.device}"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise NotPortable(f"an argument is a {tensor.layout} tensor")
    if tensor.is_conj() or tensor.is_neg():
        raise NotPortable("an argument is lazily conjugated or negated")


def _compiled(
    graph_module: fx.GraphModule, graph: _Inputs, parts: Split, settings: dict[str, Any]
) -> bytes:
    mode = inductor_compile.fake_mode_of(graph.values)
    if mode is None:
        raise NotPortable("the graph has no tensors among its arguments")
    sizes = [inductor_compile.fake_of_size(mode, graph.values[i]) for i in graph.sizes]
    own = [inductor_compile.fake_constant(mode, tensor) for tensor in graph.constants.values()]
    places = (*graph.tensors, *graph.sizes)

    def compute(*given: torch.Tensor) -> list[torch.Tensor]:
        count = len(places)
        inputs: dict[int, Any] = dict(zip(places, given[:count], strict=True))
        for position in graph.sizes:
            inputs[position] = inputs[position].shape[0]
        constants = dict(zip(graph.constants, given[count:], strict=True))
        run = Computing(graph_module, constants, parts.computed)
        made: list[torch.Tensor] = run.run(*(inputs[i] for i in range(count)))
        return made

    tensors = [graph.values[i] for i in graph.tensors]
    return inductor_compile.compile_library(compute, [*tensors, *sizes, *own], mode, settings)
