"""Engines: ways to turn an aten graph into something that runs. Found by their backend name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.errors import BackendUnavailable, OptionError
from npugx_cache.portable import NotPortable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import fx

    from npugx_cache.backend.capture import Captures
    from npugx_cache.backend.inductor.library import Library
    from npugx_cache.backend.options import Options
    from npugx_cache.backend.passes import Pass
    from npugx_cache.backend.program import Program


class NotCompiled(NotPortable):
    """The compiler behind an engine failed; installed anew or given other settings, it may not."""


class PassReport(NamedTuple):
    """How often a pass found something, and how many nodes fewer there are (negative: more)."""

    name: str
    rewrites: int
    removed: int


class CompiledLibrary(NamedTuple):
    """A shared library that an engine made of a graph, and how to call it.

    `finish` is the program that belongs to `library`, which does not have its code yet.
    """

    library: Library
    finish: Program
    data: bytes


LIBRARY = "npugx_library"
"""Key in the `meta` of a graph: the CompiledLibrary that takes its place, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """`passes` chooses the graph passes for a set of options, in the order they run."""

    name: str
    passes: Callable[[Options, bool], Iterable[tuple[str, Pass]]]

    def optimise(
        self, graph_module: fx.GraphModule, options: Options, *, distinct_inputs: bool = False
    ) -> tuple[PassReport, ...]:
        """Run the passes on the graph in place.

        `distinct_inputs`: inputs that are written to overlap no others, as in a functionalised
        graph. Raises BackendUnavailable for options without effect on the graph's devices.
        """
        from npugx_cache.backend.debug import GraphFiles

        options.require_devices(_devices(graph_module.graph))
        reports, files = [], GraphFiles()
        files.write(graph_module, "")
        for name, run in self.passes(options, distinct_inputs):
            before = len(graph_module.graph.nodes)
            rewrites = run(graph_module.graph)
            removed = before - len(graph_module.graph.nodes)
            reports.append(PassReport(name, rewrites, removed))
            files.write(graph_module, f"_after_{name}")
        graph_module.recompile()
        return tuple(reports)


def _devices(graph: fx.Graph) -> set[str]:
    values = (node.meta.get("val") for node in graph.nodes)
    return {value.device.type for value in values if hasattr(value, "device")}


NAMES = ("npugraph_ex", "aot_eager", "npugraphs", "cudagraphs", "inductor")
_GE = ("max-autotune", "GeConcreteGraph", "ge", "npu")
"""Names of the vendor's other mode, in which the graph engine of CANN compiles."""
_SUCCESSORS = {"reduce-overhead": "npugraph_ex"}
"""Names that the vendor has given up, and what to call those backends now."""


def check_name(backend: object) -> str:
    """The name of a backend that exists here; raises OptionError or BackendUnavailable."""
    if backend in NAMES:
        return str(backend)
    if backend in _GE:
        raise BackendUnavailable(
            f"backend {backend!r}: the vendor's GE mode is not supported yet; use 'npugraph_ex', "
            "or the vendor's own cache_compile for GE"
        )
    if backend in _SUCCESSORS:
        new = _SUCCESSORS[str(backend)]
        raise OptionError(f"backend {backend!r} is the old name of {new!r}; use {new!r}")
    raise OptionError(f"unknown backend {backend!r}; valid backends are {', '.join(NAMES)}")


def load(backend: str) -> Engine:
    """The engine of a checked name. Imports torch."""
    module = import_module(f"{__name__}.{check_name(backend)}")
    engine: Engine = module.ENGINE
    return engine


def captures_for(backend: str, function: str, options: Options) -> Captures | None:
    """Where the captured graphs of one function are kept; None for a backend that captures none.

    Imports torch, no compiler.
    """
    from npugx_cache.backend.capture import Captures

    if backend == "aot_eager" or not options.captures:
        return None
    return Captures(function, options, on_cpu=backend != "npugraph_ex")
