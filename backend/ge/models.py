"""Compiled models (`.om`): what GE makes of a graph, kept with the entry of the graph.

The vendor's cache names a model by a counter of the process and compares nothing. Here the model is
part of the entry, so it has the entry's conditions and its key, and GE finds it by a digest.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from npugx_cache.backend.engines import NotCompiled
from npugx_cache.backend.ge.load import compile_graph, versions
from npugx_cache.portable import NotPortable
from npugx_cache.records import replace

if TYPE_CHECKING:
    from npugx_cache.backend.ge.engine_graph import EngineGraph

logger = logging.getLogger("npugx_cache")

_ENDINGS = (".om", ".rdcpkt")
"""The model, and the resources that some models have. GE's index names files of this folder, and a
model is found without it."""


def with_models(graph: EngineGraph) -> EngineGraph:
    """Have GE compile the graph, and return it with the files of its model."""
    with tempfile.TemporaryDirectory(prefix="npugx-ge-") as name:
        folder = Path(name)
        try:
            compile_graph(graph, folder)
        except NotPortable as error:  # says something about this machine, and not about the graph
            raise NotCompiled(str(error)) from error
        files = {ending: sorted(folder.glob(f"*{ending}")) for ending in _ENDINGS}
        if len(files[".om"]) != 1:
            count = len(files[".om"])
            logger.warning("GE left %d models of a graph: each process compiles it", count)
            return graph
        found = [(ending, paths[0].read_bytes()) for ending, paths in files.items() if paths]
    return replace(graph, models=tuple(found), compiled_as=graph.digest(versions()))
