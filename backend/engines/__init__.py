"""Engines: ways to turn an aten graph into something that runs. Found by their backend name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from npugx_cache.errors import BackendUnavailable, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from npugx_cache.backend.options import Options
    from npugx_cache.backend.passes import Pass


class PassReport(NamedTuple):
    name: str
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """`passes` chooses the graph passes for a set of options, in the order they run."""

    name: str
    passes: Callable[[Options], tuple[tuple[str, Pass], ...]]

    def optimise(self, graph_module: fx.GraphModule, options: Options) -> tuple[PassReport, ...]:
        """Run the passes on the graph in place."""
        reports = tuple(
            PassReport(name, run(graph_module.graph)) for name, run in self.passes(options)
        )
        graph_module.recompile()
        return reports


NAMES = ("npugraph_ex", "aot_eager")
_LATER = ("inductor", "npugraphs", "cudagraphs")
_GE = ("max-autotune", "GeConcreteGraph", "ge", "npu")


def check_name(backend: object) -> str:
    """The name of a backend that exists here; raises OptionError or BackendUnavailable."""
    if backend in NAMES:
        return str(backend)
    if backend in _GE:
        raise BackendUnavailable(
            f"backend {backend!r} is the vendor's GE mode, which compiles to a graph that can't be "
            "captured and stored; use 'npugraph_ex'"
        )
    if backend in _LATER:
        raise BackendUnavailable(
            f"backend {backend!r} is not implemented in this version; use one of {', '.join(NAMES)}"
        )
    raise OptionError(f"unknown backend {backend!r}; valid backends are {', '.join(NAMES)}")


def load(backend: str) -> Engine:
    """The engine of a checked name. Imports torch."""
    module = import_module(f"{__name__}.{check_name(backend)}")
    engine: Engine = module.ENGINE
    return engine
