"""Engines: each turns an aten graph into something that runs. Each backend name has an engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from npugx_cache.errors import BackendUnavailable, OptionError
from npugx_cache.portable import NotPortable
from npugx_cache.records import NamedTuple, dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import fx

    from npugx_cache.backend.capture import Captures
    from npugx_cache.backend.inductor.library import Library
    from npugx_cache.backend.options import Options
    from npugx_cache.backend.passes import Pass
    from npugx_cache.backend.program import Program


class NotCompiled(NotPortable):
    """The compiler of an engine failed. After a new install or with other settings it may work."""


class PassReport(NamedTuple):
    """How many rewrites a pass made, and how many nodes it removed (negative: added)."""

    name: str
    rewrites: int
    removed: int


class CompiledLibrary(NamedTuple):
    """What an engine compiled from a graph, and how to call it.

    `data`: the bytes of a shared library, or of a graph for GE. `finish`: the program that makes
    the graph's outputs; `library.finish_code` is still empty and is to be compiled from it.
    `words`: for people, what was compiled and when it runs.
    """

    library: Library
    finish: Program
    data: bytes
    words: str


LIBRARY = "npugx_library"
"""A key of a graph's `meta`. The value is the CompiledLibrary to run instead of it, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """`passes(options, distinct_inputs)` gives the graph passes in the order in which they run."""

    passes: Callable[[Options, bool], Iterable[tuple[str, Pass]]]

    def optimise(
        self, graph_module: fx.GraphModule, options: Options, *, distinct_inputs: bool = False
    ) -> tuple[PassReport, ...]:
        """Run the passes on the graph in place.

        `distinct_inputs`: inputs that the graph writes to overlap no others, as in a functionalised
        graph. Raises BackendUnavailable for an option without effect on the graph's devices.
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


_MODULES = {
    "npugraph_ex": "engines.npugraph_ex",
    "aot_eager": "engines.as_traced",
    "npugraphs": "engines.as_traced",
    "cudagraphs": "engines.as_traced",
    "inductor": "engines.inductor",
    "ge": "ge.engine",
}
"""Each backend, and the module of `npugx_cache.backend` whose `ENGINES` has its engine."""
NAMES = tuple(_MODULES)
_VENDORS_GE = "max-autotune"
"""The vendor's name for GE mode, in which the graph engine (GE) of CANN compiles."""


def check_name(backend: object) -> str:
    """Return the name of a backend as we know it; raise OptionError or BackendUnavailable."""
    if backend in ("ge", _VENDORS_GE):
        from npugx_cache.private import graph_engine

        if not graph_engine.is_installed():
            raise BackendUnavailable(
                f"backend {backend!r} needs the graph engine of an NPU, but torch_npu is not "
                "installed"
            )
        return "ge"
    if backend in NAMES:
        return str(backend)
    from npugx_cache.config import foreign_names

    valid = f"valid backends are {', '.join(NAMES)}, {_VENDORS_GE}"
    if callable(backend):
        kind = type(backend).__qualname__
        raise OptionError(f"backend is an object ({kind}): {foreign_names.OBJECT}; {valid}")
    if isinstance(backend, str) and backend in foreign_names.BACKENDS:
        raise OptionError(f"backend {backend!r}: {foreign_names.BACKENDS[backend]}")
    raise OptionError(f"unknown backend {backend!r}; {valid}")


def load(backend: str) -> Engine:
    """The engine of a checked name. Imports torch."""
    module = import_module(f"npugx_cache.backend.{_MODULES[check_name(backend)]}")
    engine: Engine = module.ENGINES[backend]
    return engine


def captures_for(backend: str, function: str, options: Options) -> Captures | None:
    """The object that keeps the captured graphs of one function; None if nothing is captured.

    Loads torch, but no compiler.
    """
    from npugx_cache.backend.capture import Captures

    if backend == "aot_eager" or not options.captures:
        return None
    return Captures(function, options, on_cpu=backend != "npugraph_ex")
